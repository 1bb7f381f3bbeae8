package cli

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
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
	server, local := imageRegistry(t), imageRegistry(t)
	ca, key := certtest.Files(t)
	pair, err := tls.LoadX509KeyPair(ca, key)
	require.NoError(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	local.Start() // a registry on this machine needs no TLS; wasmimage.OnlyTLS holds what others need
	defer local.Close()
	image, here := server.Listener.Addr().String()+"/shop/sluice:1.0.0", local.Listener.Addr().String()+"/sluice:1"
	password, wasm := file(t, "password", "open sesame\n"), file(t, "sluice.wasm", "\x00asm")
	secret := []string{"--username", "ci", "--password-file", password}

	digests := map[string]bool{}
	for _, args := range [][]string{{image, "--ca", ca}, {image, "--ca", ca, "--form", "artifact"}, {here}} {
		out, err := pushImage(t, slices.Concat(args, secret, []string{"--wasm", wasm, "-o", "json"})...)
		require.NoError(t, err)
		var done pushed
		require.NoError(t, json.Unmarshal([]byte(out), &done))
		require.Equal(t, args[0], done.Image)
		require.Equal(t, "oci://"+args[0]+"@"+done.Digest, done.URL)
		digests[done.Digest] = true
	}
	require.Len(t, digests, 2, "of the two forms")

	for _, c := range []struct {
		says, hint string
		code       int
		args       []string
	}{
		{"401 Unauthorized", "--password-file", ExitFailed, []string{image, "--ca", ca}},
		{
			"401 Unauthorized", "--password-file", ExitFailed,
			[]string{image, "--ca", ca, "--username", "ci", "--password-file", wasm},
		},
		{"certificate signed by unknown authority", "--ca", ExitFailed, append([]string{image}, secret...)},
		{"is not REGISTRY/IMAGE:TAG", "give all three", ExitUsage, []string{"sluice:1"}},
		{"is not REGISTRY/IMAGE:TAG", "give all three", ExitUsage, []string{"registry.example.com/sluice"}},
		{"belong together", "give both", ExitUsage, []string{image, "--username", "ci"}},
		{"must be compat or artifact", "--help", ExitUsage, []string{image, "--form", "zip"}},
	} {
		_, err := pushImage(t, append(c.args, "--wasm", wasm)...)
		require.ErrorContains(t, err, c.says)
		require.Contains(t, Hint(err), c.hint)
		require.Equal(t, c.code, ExitCode(err))
		require.NotContains(t, err.Error(), "sesame")
	}
}
