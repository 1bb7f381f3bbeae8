package cli

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// imageRegistry is a registry with a password.
func imageRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	images := registry.New(registry.Logger(quiet))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "ci" || password != "open sesame" {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = quiet
	return server
}

func pushImage(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // nobody's credentials
	t.Setenv("HOME", t.TempDir())
	root := NewRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"image", "push"}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestImagePush(t *testing.T) {
	a := newAuthority()
	cert, key := a.issue("registry.test")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	require.NoError(t, err)
	server := imageRegistry(t)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "https://") + "/shop/sluice:1.0.0"
	ca, password := file(t, "ca.pem", a.pem), file(t, "password", "open sesame\n")
	wasm := file(t, "sluice.wasm", "\x00asm")

	digests := map[string]bool{}
	for _, form := range []string{"compat", "artifact"} {
		out, err := pushImage(t, image, "--form", form, "--wasm", wasm, "--ca", ca, "--username", "ci", "--password-file", password, "-o", "json")
		require.NoError(t, err)
		var done pushed
		require.NoError(t, json.Unmarshal([]byte(out), &done))
		require.Equal(t, image, done.Image)
		digests[done.Digest] = true
		_, err = envoy.Istio(envoy.IstioOptions{
			Object: envoy.Object{Name: "sluice"}, Fetch: envoy.Fetch{URL: done.URL}, Policy: []byte("version: 1\nrules: []\n"),
		})
		require.NoError(t, err, "render takes the URL")
	}
	require.Len(t, digests, 2)

	for _, c := range []struct {
		name, says, hint string
		args             []string
	}{
		{"no password", "401 Unauthorized", "--password-file", []string{"--ca", ca}},
		{"wrong password", "401 Unauthorized", "--password-file", []string{"--ca", ca, "--username", "ci", "--password-file", wasm}},
		{"unknown authority", "certificate signed by unknown authority", "--ca", []string{"--username", "ci", "--password-file", password}},
	} {
		_, err := pushImage(t, append([]string{image, "--wasm", wasm}, c.args...)...)
		require.ErrorContains(t, err, c.says, c.name)
		require.Contains(t, Hint(err), c.hint, c.name)
		require.NotContains(t, err.Error(), "sesame")
	}
}

// A registry on this machine needs no TLS; wasmimage.OnlyTLS holds what others need.
func TestImagePushWithoutTLS(t *testing.T) {
	server := imageRegistry(t)
	server.Start()
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/sluice:1"
	wasm, password := file(t, "sluice.wasm", "\x00asm"), file(t, "password", "open sesame")
	out, err := pushImage(t, image, "--username", "ci", "--password-file", password, "--wasm", wasm)
	require.NoError(t, err)
	require.Contains(t, out, "for render: --url oci://"+image+"@sha256:")

	ref, err := name.ParseReference(image)
	require.NoError(t, err)
	_, err = remote.Image(ref)
	require.ErrorContains(t, err, "401 Unauthorized", "the registry has a password")
}

func TestImagePushUsage(t *testing.T) {
	wasm := file(t, "sluice.wasm", "\x00asm")
	for _, args := range [][]string{
		{"sluice:1"}, // no registry
		{"registry.example.com/sluice"},
		{"registry.example.com/sluice:1", "--form", "zip"},
		{"registry.example.com/sluice:1", "--username", "ci"},
	} {
		_, err := pushImage(t, append(args, "--wasm", wasm)...)
		require.Equal(t, ExitUsage, ExitCode(err), "%v: %v", args, err)
		require.NotEmpty(t, Hint(err))
	}
}
