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
	"time"

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
	require.FileExists(t, filepath.Join(release, "SHA256SUMS"),
		"run `make e2e-gateway` or `make e2e-istio`, which make a release, "+
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

const answersPolicy = "version: 1\nrules:\n" +
	"- {name: tokens, match: {paths: [/answers/tokens]}, key: [{header: x-user-id}], limits: [100/" + far +
	"], settle: {to: tokens}}\n" +
	"- {name: in-flight, match: {paths: [/answers/slow]}, key: [{header: x-user-id}], algorithm: concurrency,\n" +
	"   limits: [1]}\n"

// awaitLimit waits until all workers say that this is the limit of a rule.
func awaitLimit(t *testing.T, p *proxy, path, rule string, limit int, headers ...string) {
	want := fmt.Sprintf(`"%s";q=%d;`, rule, limit)
	eventually(t, time.Minute, fmt.Sprintf("a limit of %d by %s at %s", limit, rule, p.address), func() bool {
		for range 10 {
			res, _, err := p.try(path, append(headers, "x-user-id", "nobody", "connection", "close")...)
			if err != nil || !strings.Contains(res.Header.Get("RateLimit-Policy"), want) {
				return false
			}
		}
		return true
	})
}

// awaitStatus waits until all workers answer with it.
func awaitStatus(t *testing.T, want int, p *proxy, path string, headers ...string) {
	eventually(t, time.Minute, fmt.Sprintf("%d at %s%s", want, p.address, path), func() bool {
		for range 8 {
			res, _, err := p.try(path, append(headers, "connection", "close")...)
			if err != nil || res.StatusCode != want {
				return false
			}
		}
		return true
	})
}

// passes requires that so many requests of the user pass and the one after them is denied.
func passes(t *testing.T, n int, p *proxy, path, user string, headers ...string) {
	headers = append(headers, "x-user-id", user, "connection", "close")
	for i := range n {
		require.Equal(t, allowed, p.status(t, path, headers...), "request %d of %d", i+1, n)
	}
	require.Equal(t, denied, p.status(t, path, headers...), "request %d", n+1)
}

// requireAnswersCount requires a proxy to come to count the tokens that answers say, and the
// requests in flight.
func requireAnswersCount(t *testing.T, p *proxy) {
	tokens := func(user string) int {
		return p.status(t, "/answers/tokens", "x-user-id", user, "connection", "close",
			"x-send", "content-type: application/json", "x-body", `{"usage":{"prompt_tokens":60,"completion_tokens":41}}`)
	}
	users := 0
	eventually(t, time.Minute, "all workers to deny whose tokens are spent, and nobody else", func() bool {
		for range 8 {
			users++
			if user := fmt.Sprint("user-", users); tokens(user) != allowed || tokens(user) != denied {
				return false
			}
		}
		return true
	})

	slow := func(wait string) int {
		return p.status(t, "/answers/slow", "x-user-id", "first", "connection", "close", "x-wait", wait)
	}
	first := make(chan int, 1)
	go func() {
		status := denied
		for status == denied { // by one of those below
			status = slow("3s")
		}
		first <- status
	}()
	eventually(t, time.Second, "the slot to be taken", func() bool { return slow("0s") == denied })
	require.Empty(t, first, "it still runs")
	require.Equal(t, http.StatusOK, <-first)
	require.Equal(t, allowed, slow("0s"))
}
