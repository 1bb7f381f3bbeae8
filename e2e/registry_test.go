//go:build gateway || istio

package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// imagePassword is what a registry asks the user ci for.
const imagePassword = "open sesame"

// images is a registry with TLS and a password.
type images struct {
	*httptest.Server
	ca string // file: the certificate that vouches for it
}

func startImages(t *testing.T, ca string, pair tls.Certificate) *images {
	quiet := log.New(io.Discard, "", 0)
	all := registry.New(registry.Logger(quiet))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "ci" || password != imagePassword {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q", realm(r.Host)))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		all.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = quiet
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return &images{s, ca}
}

// realm is a URL where the registry is asked by a name, as that of Amazon's is, and a word
// where it is asked by an address.
func realm(host string) string {
	if name, _, _ := net.SplitHostPort(host); net.ParseIP(name) == nil {
		return "https://" + host + "/"
	}
	return "images"
}

// pullSecret is what a pull secret holds for the registry under these names.
func pullSecret(t *testing.T, hosts ...string) string {
	auths := map[string]map[string]string{}
	for _, host := range hosts {
		auths[host] = map[string]string{"username": "ci", "password": imagePassword}
	}
	text, err := json.Marshal(map[string]any{"auths": auths})
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(text)
}

var pushedFilter = regexp.MustCompile(`(?m)^(\S+:filter-(artifact-)?v\S+)@(sha256:[0-9a-f]{64})$`)

// pushRelease pushes the images of a release. It returns where the filter is, by the
// digest, for each form.
func (r *images) pushRelease(t *testing.T) map[string]string {
	releaser, release := os.Getenv("SLUICE_RELEASER"), os.Getenv("SLUICE_RELEASE")
	require.FileExists(t, filepath.Join(release, "SHA256SUMS"), "run `make e2e-gateway` or `make e2e-istio`, which make a release, "+
		"or set SLUICE_RELEASE to the folder of one and SLUICE_RELEASER to the program that made it")
	cmd := exec.CommandContext(t.Context(), releaser, "push", release, host(r.Server)+"/shop/sluice")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+r.ca, "REGISTRY_USERNAME=ci", "REGISTRY_PASSWORD="+imagePassword)
	out, err := cmd.Output()
	require.NoError(t, err)
	urls := map[string]string{}
	for _, line := range pushedFilter.FindAllStringSubmatch(string(out), -1) {
		form := "compat"
		if line[2] != "" {
			form = "artifact"
		}
		urls[form] = "oci://" + line[0]
		require.Equal(t, line[3], r.push(t, form), "the filter in a release and the one that `image push` pushes")
	}
	require.Len(t, urls, 2, string(out))
	return urls
}

// push pushes the filter by `sluice image push` and returns its digest.
func (r *images) push(t *testing.T, form string) string {
	to := fmt.Sprint(host(r.Server), "/shop/pushed:", form)
	out := sluiceOK(t, "image", "push", to, "--form", form, "--ca", r.ca,
		"--username", "ci", "--password-file", file(t, "password", imagePassword), "-o", "json")
	pushed := decoded[struct{ URL, Digest string }](t, out)
	require.Equal(t, "oci://"+to+"@"+pushed.Digest, pushed.URL)
	return pushed.Digest
}

func host(s *httptest.Server) string {
	_, address, _ := strings.Cut(s.URL, "://")
	return address
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// page returns a page of the documentation.
func page(t *testing.T, name string) string { return read(t, buildtest.Root(), "docs", name) }

// block returns the block of YAML on a page that has this text in it.
func block(t *testing.T, name, text string) string {
	for _, part := range strings.Split(page(t, name), "```")[1:] {
		if yaml, found := strings.CutPrefix(part, "yaml\n"); found && strings.Contains(yaml, text) {
			return yaml
		}
	}
	require.FailNow(t, "no such block", "%s: %q", name, text)
	return ""
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
