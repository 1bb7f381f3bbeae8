package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/charttest"
	"github.com/sluice-ratelimit/sluice/build/wasm"
)

const tree = "../.."

// standIn makes all of a release but its binaries, which compiling takes minutes. It
// returns the folder and the key.
func standIn(t *testing.T) (string, *ecdsa.PrivateKey) {
	t.Helper()
	return releaseOf(t, func(platform string) []byte { return []byte("#!/bin/sh\necho " + platform + "\n") })
}

// modulesOfTree are what a release for one platform links. Listing them takes the go command seconds.
var modulesOfTree = sync.OnceValues(func() ([]module, error) {
	r := release{tree: tree, log: io.Discard, platforms: []string{"linux/amd64"}, compilers: madeBy}
	err := r.findModules(context.Background())
	return r.modules, err
})

var madeBy = []wasm.Compiler{{Name: "tinygo", Version: "0.39.0"}}

// releaseOf makes a release of these binaries.
func releaseOf(t *testing.T, binary func(platform string) []byte) (string, *ecdsa.PrivateKey) {
	t.Helper()
	r := release{
		tree: tree, version: "v0.1.0", out: filepath.Join(t.TempDir(), "v0.1.0"), log: io.Discard,
		platforms: allPlatforms, compilers: madeBy,
		commit: "c0ffee", time: time.Unix(1_800_000_000, 0).UTC(), filter: []byte("\x00asm stands in"),
	}
	var err error
	r.Root, err = os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer r.Close()
	r.key, err = r.readKey()
	require.NoError(t, err)
	r.modules, err = modulesOfTree()
	require.NoError(t, err)
	require.NoError(t, r.WriteFile(filterFile, r.filter, 0o600))
	for _, platform := range r.platforms {
		require.NoError(t, r.WriteFile(r.binaryFile(platform), binary(platform), 0o700))
	}
	for _, dir := range []string{r.out, r.out + ".unfinished"} { // of runs before
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "old"), nil, 0o600))
	}
	require.NoError(t, r.finish())
	return r.out, r.key
}

// files returns a release's files by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	}))
	return found
}

func varies(file string) bool {
	return strings.HasPrefix(file, signatureDir+"/") || strings.HasPrefix(file, signatureSums) ||
		file == publicKeyFile || file == sumsFile+signatureEnd
}

func TestTwoReleasesAreAlike(t *testing.T) {
	one, _ := standIn(t)
	two, _ := standIn(t)
	first, second := files(t, one), files(t, two)
	for name, text := range first {
		if !varies(name) {
			require.Equal(t, sha256.Sum256([]byte(text)), sha256.Sum256([]byte(second[name])), name)
			require.NotContains(t, text, one, name)
		}
		info, err := os.Stat(filepath.Join(one, name))
		require.NoError(t, err)
		require.EqualValues(t, 0o444, info.Mode()&0o444, "everybody may read %s", name)
	}
	require.NotContains(t, first, "old")
	require.NotEqual(t, first[sumsFile+signatureEnd], second[sumsFile+signatureEnd])
}

// What is pushed is what the layouts have, and each signature is for its image.
func TestPush(t *testing.T) {
	dir, key := standIn(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	cmd := newCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	address := strings.TrimPrefix(server.URL, "http://") + "/shop/sluice"
	cmd.SetArgs([]string{"push", dir, address})
	require.NoError(t, cmd.ExecuteContext(t.Context()))
	lines := strings.Fields(out.String())
	require.Len(t, lines, 8, "the chart, three images, and their signatures")

	repository, err := name.NewRepository(address)
	require.NoError(t, err)
	for _, line := range lines[:4] {
		_, digest, _ := strings.Cut(line, "@")
		signed, err := remote.Image(repository.Tag(strings.ReplaceAll(digest, ":", "-") + ".sig"))
		require.NoError(t, err)
		manifest, err := signed.Manifest()
		require.NoError(t, err)
		layers, err := signed.Layers()
		require.NoError(t, err)
		content, err := layers[0].Compressed()
		require.NoError(t, err)
		payload, err := io.ReadAll(content)
		require.NoError(t, err)
		raw, err := base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations[signatureAnnotation])
		require.NoError(t, err)
		hash := sha256.Sum256(payload)
		require.True(t, ecdsa.VerifyASN1(&key.PublicKey, hash[:], raw))
		var said struct {
			Critical struct {
				Image map[string]string
				Type  string
			}
		}
		require.NoError(t, json.Unmarshal(payload, &said))
		require.Equal(t, digest, said.Critical.Image["docker-manifest-digest"])
	}

	index, err := remote.Index(repository.Tag("v0.1.0"))
	require.NoError(t, err)
	require.NoError(t, validate.Index(index))
	requireChart(t, dir, address)
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	for i, arch := range []string{"amd64", "arm64"} {
		require.Equal(t, "linux/"+arch, manifest.Manifests[i].Platform.String())
		img, err := index.Image(manifest.Manifests[i].Digest)
		require.NoError(t, err)
		config, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "65532:65532", config.Config.User)
		require.Equal(t, []string{"/sluice"}, config.Config.Entrypoint)
		require.Equal(t, "/sluice", linkOf(t, img, "bin/ratelimit"))
	}
}

// requireChart requires Helm to pull the chart of the release, which installs the release's image.
func requireChart(t *testing.T, dir, address string) {
	t.Helper()
	pulled := t.TempDir()
	_, err := charttest.Run(t, "pull", "oci://"+address, "--version", "0.1.0", "--plain-http", "--destination", pulled)
	require.NoError(t, err)
	chart := files(t, dir)["sluice-chart-v0.1.0.tgz"]
	require.Equal(t, map[string]string{"sluice-0.1.0.tgz": chart}, files(t, pulled))
	rendered, err := charttest.Run(t, "template", "sluice", filepath.Join(dir, "sluice-chart-v0.1.0.tgz"), "--values",
		filepath.Join(tree, "examples/testdata/values/least.yaml"))
	require.NoError(t, err)
	require.Contains(t, rendered, `image: "registry.example.com/sluice:v0.1.0"`)
	require.Contains(t, rendered, "helm.sh/chart: sluice-0.1.0\n")
}

// linkOf is what a link in an image leads to.
func linkOf(t *testing.T, img v1.Image, name string) string {
	t.Helper()
	content := mutate.Extract(img)
	defer content.Close()
	for contents := tar.NewReader(content); ; {
		next, err := contents.Next()
		require.NoError(t, err)
		if next.Name == name {
			return next.Linkname
		}
	}
}

func TestBillOfMaterials(t *testing.T) {
	dir, _ := standIn(t)
	file, err := os.Open(filepath.Join(dir, sbomFile))
	require.NoError(t, err)
	defer file.Close()
	var bom cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(file, cdx.BOMFileFormatJSON).Decode(&bom))
	notices := files(t, dir)[noticesFile]
	names := map[string]bool{}
	for _, c := range *bom.Components {
		names[c.Name] = true
		require.Contains(t, notices, "\n"+c.Name+" "+c.Version+" (")
	}
	for _, name := range []string{"std", "github.com/spf13/cobra", "github.com/proxy-wasm/proxy-wasm-go-sdk",
		"github.com/tinygo-org/tinygo"} {
		require.True(t, names[name], name)
	}
	require.False(t, names["github.com/stretchr/testify"], "tests reach no user")
	library := regexp.MustCompile(`\nstd (go\S+) \(`).FindAllString(notices, -1)
	require.Len(t, library, 2, "that of the binaries and that of the filter")
	require.Equal(t, []cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "tinygo", Version: "0.39.0"}},
		*bom.Metadata.Tools.Components)
}

func TestLicenses(t *testing.T) {
	gpl, err := assets.ReadLicenseFile("License/GPL-3.0/license.txt")
	require.NoError(t, err)
	for text, says := range map[string]string{
		"Do what you are told": "is no license that is known", string(gpl): "not among the allowed",
	} {
		dir := t.TempDir()
		r := release{modules: []module{{Path: "example.com/m", Dir: dir}}}
		require.ErrorContains(t, r.readLicenses(), "has no license")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "LICENSE"), []byte(text), 0o600))
		require.ErrorContains(t, r.readLicenses(), says)
	}
}

// A key comes in PEM by a file or a variable, as openssl writes it or as cosign keeps it,
// under a password.
func TestSigningKey(t *testing.T) {
	key, err := (&release{log: io.Discard}).readKey()
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	secret, err := encrypted.Encrypt(der, []byte("open sesame"))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		kind, password, want string
		content              []byte
	}{
		{"PRIVATE KEY", "", "", der},
		{"ENCRYPTED SIGSTORE PRIVATE KEY", "", passwordVariable, secret},
		{"ENCRYPTED SIGSTORE PRIVATE KEY", "open sesame", "", secret},
		{"CERTIFICATE", "", "unknown private key PEM file type: CERTIFICATE", der},
	} {
		text := pem.EncodeToMemory(&pem.Block{Type: c.kind, Bytes: c.content})
		require.NoError(t, os.WriteFile(file, text, 0o600))
		t.Setenv(passwordVariable, c.password)
		t.Setenv("KEY_OF_TEST", string(text))
		for _, from := range []string{file, "env://KEY_OF_TEST"} {
			_, err := (&release{signKey: from}).readKey()
			if c.want == "" {
				require.NoError(t, err, c.kind)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		}
	}
}
