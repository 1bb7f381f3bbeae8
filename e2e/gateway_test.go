//go:build gateway

package e2e

import (
	"bytes"
	"crypto/tls"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// gateway is a running Envoy Gateway. Its resources are files, its proxies are processes
// of this machine.
type gateway struct {
	*child.Child

	dir, binary string
	tokens      tokens

	web, apart, manage, second *proxy // by the listeners that the test talks to
	quota                      string // address of the quota service

	files, secureFiles *httptest.Server // where the filter is fetched from
	images             *images
	ca                 string // file: the certificate of the last two
}

// startGateway starts Envoy Gateway with this Envoy for its proxies.
func startGateway(t *testing.T, d driver) *gateway {
	binary := os.Getenv("SLUICE_ENVOY_GATEWAY")
	require.NotEmpty(t, binary, "run `make e2e-gateway`, which builds Envoy Gateway, or set SLUICE_ENVOY_GATEWAY to the path of one")
	g := &gateway{dir: t.TempDir(), binary: binary, tokens: newTokens(t), quota: freeAddress(t)}
	free, err := ports.Free(4)
	require.NoError(t, err)
	for i, p := range []**proxy{&g.web, &g.apart, &g.manage, &g.second} {
		*p = &proxy{address: fmt.Sprint("127.0.0.1:", free[i])}
	}
	version := strings.TrimPrefix(d.name, "envoy-")
	bin := filepath.Join(g.dir, "data", "envoy-versions", version, "bin")
	for _, dir := range []string{bin, g.path("resources"), g.path("www")} {
		require.NoError(t, os.MkdirAll(dir, 0o750))
	}
	require.NoError(t, os.Symlink(d.envoy, filepath.Join(bin, "envoy"))) // or it would be downloaded
	g.serveFilter(t)
	certgen := exec.CommandContext(t.Context(), binary, "certgen", "--local", "--config-home", g.path("config"))
	out, err := certgen.CombinedOutput()
	require.NoError(t, err, string(out))
	g.write(t, "config.yaml", g.fill(t, "envoygateway-config.yaml", map[string]any{"Dir": g.dir}))
	g.write(t, "resources/base.yaml", g.fill(t, "envoygateway.yaml", g.base(t, version)))
	g.write(t, "resources/wasm.yaml", g.fill(t, "envoygateway-wasm.yaml", map[string]any{"Dir": g.dir, "Gateway": "edge"}))
	cmd := exec.Command(binary, "server", "-c", g.path("config.yaml"))
	cmd.Env = append(os.Environ(), "HOME="+g.path("home"), "SSL_CERT_FILE="+g.ca)
	g.Child = startGently(t, cmd) // and with it its proxies
	return g
}

func (g *gateway) path(name string) string { return filepath.Join(g.dir, name) }

// write replaces a file at once: half of one would be read as it is.
func (g *gateway) write(t *testing.T, name, text string) {
	next := g.path("next")
	require.NoError(t, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(t, os.Rename(next, g.path(name)))
}

// apply creates or replaces the resources of that name.
func (g *gateway) apply(t *testing.T, name, text string) {
	g.write(t, filepath.Join("resources", name+".yaml"), text)
}

func (g *gateway) fill(t *testing.T, name string, values map[string]any) string {
	text, err := template.ParseFiles(filepath.Join("testdata", name))
	require.NoError(t, err)
	var filled bytes.Buffer
	require.NoError(t, text.Option("missingkey=error").Execute(&filled, values))
	return filled.String()
}

// base are the values of the resources beside the policies.
func (g *gateway) base(t *testing.T, version string) map[string]any {
	type path struct{ Rule, Prefix string }
	type route struct {
		Name, Parents string
		Paths         []path
	}
	certificate := func(name string) string {
		return base64.StdEncoding.EncodeToString([]byte(read(t, g.dir, "config", "certs", "envoy", name)))
	}
	const web = "{name: edge, sectionName: web}"
	return map[string]any{
		"Version": version, "Dir": g.dir, "Bootstrap": labelPatch(t),
		"CA": certificate("ca.crt"), "Cert": certificate("tls.crt"), "Key": certificate("tls.key"),
		"Docker": pullSecret(t, host(g.images.Server)), "Keys": g.tokens.keys(t),
		"Web": port(g.web.address), "Apart": port(g.apart.address), "Manage": port(g.manage.address),
		"Backends": map[string]string{"web": port(host(upstream())), "grpc": port(healthServer(t))},
		"Routes": []route{
			{"shop", web, []path{{"all", "/"}}},
			{"orders", web, []path{{"all", "/orders"}}},
			{"rules", web, []path{{"first", "/rules/first"}, {"second", "/rules/second"}}},
			{"token", web, []path{{"all", "/token"}}},
			{"answers", web, []path{{"all", "/answers"}}},
			{"apart", "{name: edge, sectionName: apart}", []path{{"all", "/"}}},
			{"manage", "{name: edge, sectionName: manage}", []path{{"all", "/.sluice/"}}},
		},
	}
}

// render is what the command line writes for a policy.
func (g *gateway) render(t *testing.T, policy string, args ...string) string {
	return sluiceOK(t, append([]string{"render", "envoy-gateway", "-n", "edge", "-f", file(t, "policy.yaml", policy)}, args...)...)
}

// from are the flags of a filter that a web server has.
func (g *gateway) from(t *testing.T, server *httptest.Server, name string) []string {
	return []string{"--url", server.URL + "/" + name, "--sha256", digestOf([]byte(read(t, g.dir, "www", name)))}
}

// serveFilter starts the servers that have the filter: two of files, with and without
// TLS, and a registry of images with TLS and a password.
func (g *gateway) serveFilter(t *testing.T) {
	for name, path := range map[string]string{"sluice.wasm": built.filter, "earlier.wasm": earlierFilter(t)} {
		require.NoError(t, os.WriteFile(g.path(filepath.Join("www", name)), []byte(read(t, path)), 0o600))
	}
	cert, key := buildtest.Certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	wasm := http.FileServer(http.Dir(g.path("www")))
	g.ca, g.images = cert, startImages(t, cert, pair)
	g.files, g.secureFiles = httptest.NewServer(wasm), httptest.NewUnstartedServer(wasm)
	g.secureFiles.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	g.secureFiles.StartTLS()
	for _, s := range []*httptest.Server{g.files, g.secureFiles} {
		t.Cleanup(s.Close)
	}
}

// labelPatch is the bootstrap of docs/metrics.md that makes a label of a rule's name.
func labelPatch(t *testing.T) string {
	var proxy struct {
		Spec struct{ Bootstrap any }
	}
	require.NoError(t, yaml.Unmarshal([]byte(block(t, "metrics.md", "kind: EnvoyProxy")), &proxy))
	text, err := json.Marshal(proxy.Spec.Bootstrap)
	require.NoError(t, err)
	return string(text)
}

// healthServer is a gRPC server's address.
func healthServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// version is that of the Envoy Gateway in the program.
func (g *gateway) version(t *testing.T) string {
	program, err := buildinfo.ReadFile(g.binary)
	require.NoError(t, err)
	require.Equal(t, "github.com/envoyproxy/gateway", program.Main.Path)
	return strings.TrimPrefix(program.Main.Version, "v")
}
