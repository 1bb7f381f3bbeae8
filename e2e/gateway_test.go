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
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
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
	limiter                    *rateLimiter

	files, secureFiles *httptest.Server // where the filter is fetched from
	images             *images
	ca                 string // file: the certificate of the last two
}

// startGateway starts Envoy Gateway with this Envoy for its proxies.
func startGateway(t *testing.T, d driver) *gateway {
	binary := os.Getenv("SLUICE_ENVOY_GATEWAY")
	require.NotEmpty(t, binary, "run `make e2e-gateway`, or set SLUICE_ENVOY_GATEWAY to the path of an Envoy Gateway")
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
	g.limiter = newRateLimiter(t, ours(t), servertest.StartRedis(t, servertest.Redis(t)).Addr())
	certgen := exec.CommandContext(t.Context(), binary, "certgen", "--local", "--config-home", g.path("config"))
	out, err := certgen.CombinedOutput()
	require.NoError(t, err, string(out))
	places := map[string]any{"Dir": g.dir, "Redis": g.limiter.redis}
	g.write(t, "config.yaml", g.fill(t, "envoygateway-config.yaml", places))
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
	return sluiceOK(t, append([]string{"render", "envoy-gateway", "-n", "edge", "-f", file(t, "policy.yaml", policy)},
		args...)...)
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
	cert, key := certtest.Files(t)
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

// TestEnvoyGateway runs the real Envoy Gateway on what `sluice render envoy-gateway`
// writes. Each step goes on where the one before it has ended.
func TestEnvoyGateway(t *testing.T) {
	for _, d := range envoys(t, true) {
		t.Run(d.name, func(t *testing.T) {
			g := startGateway(t, d)
			for _, step := range []struct {
				name string
				run  func(t *testing.T, g *gateway)
			}{
				{"the 11th request is denied", firstLimit},
				{"a change keeps the counters", changedLimit},
				{"a refused policy leaves the limits on and holds changes back until it is mended", refusedPolicy},
				{"another binary keeps the counters", anotherBinary},
				{"a wrong digest is answered with 500 and keeps the counters", wrongDigest},
				{"a release's image from a private registry, by its digest, in both forms", privateImage},
				{"https", overHTTPS},
				{"each kind of target, a route in place of its Gateway", targetKinds},
				{"a claim of a token is the key", claimKey},
				{"tokens of answers, and requests in flight", countedAnswers},
				{"operations on the management port alone", managementPort},
				{"metrics have the rule as a label", labelledMetrics},
				{"the access log has the verdict", loggedVerdict},
				{"a new proxy under a refused policy answers 503 until it is mended", newProxyRefused},
				{"one limit over two proxies", overTwoProxies},
				{"global rate limits, for which its proxies call sluice", globalLimits},
			} {
				if !t.Run(step.name, func(t *testing.T) { step.run(t, g) }) {
					return
				}
			}
			t.Run("the table of what was run says so", func(t *testing.T) {
				require.Regexp(t, `\n\| \[Envoy Gateway\]\S* \| `+g.version(t)+` \|[^|]* `+strings.TrimPrefix(d.name, "envoy-")+
					`[, ]`, page(t, "install.md"))
			})
		})
	}
}

// shop is a policy with one limit for each user below /v1/.
func (g *gateway) shop(limit int) string {
	return fmt.Sprintf(`version: 1
domain: shop
headers: ietf
manage: {path: /.sluice/, port: %s, token_sha256: %s}
rules:
  # Each user may send a few requests a year.
  - name: per-user
    match: {paths: ["/v1/*"]}
    key: [{header: x-user-id}]
    limits: [%d/%s]
`, port(g.manage.address), tokenSHA256, limit, far)
}

// limit applies that policy to the Gateway and waits until the proxy has it.
func (g *gateway) limit(t *testing.T, limit int, flags ...string) {
	g.apply(t, "sluice", g.render(t, g.shop(limit), append(flags, "--target", "Gateway/edge")...))
	awaitLimit(t, g.web, "/v1/x", "per-user", limit)
}

func firstLimit(t *testing.T, g *gateway) {
	g.limit(t, 10, g.from(t, g.files, "sluice.wasm")...)
	passes(t, 10, g.web, "/v1/x", "alice")
	res, _ := g.web.get(t, "/v1/x", "x-user-id", "alice")
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	require.Contains(t, res.Header.Get("RateLimit"), `"per-user";r=0`)
	require.Equal(t, allowed, g.web.status(t, "/v1/x", "x-user-id", "bob"))
	for range 20 {
		require.Equal(t, allowed, g.web.status(t, "/v2/x", "x-user-id", "alice"))
	}
}

func changedLimit(t *testing.T, g *gateway) {
	g.limit(t, 15, g.from(t, g.files, "sluice.wasm")...)
	passes(t, 5, g.web, "/v1/x", "alice")
}

func refusedPolicy(t *testing.T, g *gateway) {
	flags := append(g.from(t, g.files, "sluice.wasm"), "--target", "Gateway/edge")
	text := g.render(t, g.shop(20), flags...)
	require.Contains(t, text, "20/"+far)
	g.apply(t, "sluice", strings.ReplaceAll(text, "20/"+far, "20/1parsec"))
	eventually(t, time.Minute, "the refusal in the log", func() bool {
		return strings.Contains(g.Log(), "Envoy rejected the last update")
	})
	require.Contains(t, g.Log(), "policy refused: ")
	passes(t, 15, g.web, "/v1/x", "dave")
	require.Equal(t, denied, g.web.status(t, "/v1/x", "x-user-id", "alice"))

	// A policy of another route waits.
	g.apply(t, "routes", g.render(t, perUser("2/"+far), append(g.from(t, g.files, "sluice.wasm"), "--name", "routes",
		"--target", "HTTPRoute/orders", "--target", "HTTPRoute/rules/first", "--target", "GRPCRoute/health", "--target",
		"Gateway/edge/apart")...))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		require.Equal(t, allowed, g.web.status(t, "/orders", "x-user-id", "held back"))
	}
	g.apply(t, "sluice", text)
	awaitLimit(t, g.web, "/v1/x", "per-user", 20)
	passes(t, 5, g.web, "/v1/x", "alice")
	awaitStatus(t, denied, g.web, "/orders", "x-user-id", "held back")
}

func anotherBinary(t *testing.T, g *gateway) {
	g.limit(t, 22, g.from(t, g.files, "earlier.wasm")...)
	passes(t, 2, g.web, "/v1/x", "alice")
	g.limit(t, 25, g.from(t, g.files, "sluice.wasm")...)
	passes(t, 3, g.web, "/v1/x", "alice")
}

func wrongDigest(t *testing.T, g *gateway) {
	wrong := []string{"--url", g.files.URL + "/sluice.wasm", "--sha256", strings.Repeat("0123456789abcdef", 4),
		"--target", "Gateway/edge"}
	g.apply(t, "sluice", g.render(t, g.shop(25), wrong...))
	awaitStatus(t, http.StatusInternalServerError, g.web, "/v1/x", "x-user-id", "alice")
	g.apply(t, "sluice", g.render(t, g.shop(25), append(wrong, "--fail-open")...))
	awaitStatus(t, allowed, g.web, "/v1/x", "x-user-id", "alice")
	g.limit(t, 27, g.from(t, g.files, "sluice.wasm")...)
	passes(t, 2, g.web, "/v1/x", "alice")
}

func privateImage(t *testing.T, g *gateway) {
	limit := 27
	for form, url := range g.images.pushRelease(t) {
		limit++
		t.Run(form, func(t *testing.T) {
			g.limit(t, limit, "--url", url, "--pull-secret", "registry")
			passes(t, 1, g.web, "/v1/x", "alice")
		})
	}
}

func overHTTPS(t *testing.T, g *gateway) {
	g.limit(t, 30, g.from(t, g.secureFiles, "sluice.wasm")...)
	passes(t, 1, g.web, "/v1/x", "alice")
}

func targetKinds(t *testing.T, g *gateway) {
	passes(t, 2, g.web, "/orders", "a route")
	require.Equal(t, allowed, g.web.status(t, "/rules/second", "x-user-id", "a rule"))
	passes(t, 2, g.web, "/rules/first", "a rule")
	require.Equal(t, allowed, g.web.status(t, "/rules/second", "x-user-id", "a rule"))
	passes(t, 2, g.apart, "/", "a listener")

	connection, err := grpc.NewClient(g.web.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer connection.Close()
	var got []codes.Code
	for range 3 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user-id", "gRPC")
		_, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		got = append(got, status.Code(err))
	}
	require.Equal(t, []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted}, got)

	// The Gateway's rule says /v1/*, and does not apply where a route has a policy.
	require.Equal(t, denied, g.web.status(t, "/v1/x", "x-user-id", "alice"))
	require.Equal(t, allowed, g.web.status(t, "/orders/v1/x", "x-user-id", "alice"))
}

func claimKey(t *testing.T, g *gateway) {
	policy := "version: 1\nrules: [{name: per-subject, key: [{jwt: {provider: corp, claim: sub}}], limits: [2/" + far +
		"]}]\n"
	g.apply(t, "token", g.render(t, policy,
		append(g.from(t, g.files, "sluice.wasm"), "--name", "token", "--target", "HTTPRoute/token")...))
	alice, bob := g.tokens.sign(t, `{"iss":"me","sub":"alice"}`), g.tokens.sign(t, `{"iss":"me","sub":"bob"}`)
	awaitStatus(t, denied, g.web, "/token", "authorization", alice)
	passes(t, 2, g.web, "/token", "bob", "authorization", bob)
	require.Equal(t, http.StatusUnauthorized,
		g.web.status(t, "/token", "authorization", newTokens(t).sign(t, `{"iss":"me","sub":"carol"}`)))
}

func countedAnswers(t *testing.T, g *gateway) {
	g.apply(t, "answers", g.render(t, answersPolicy,
		append(g.from(t, g.files, "sluice.wasm"), "--name", "answers", "--target", "HTTPRoute/answers")...))
	requireAnswersCount(t, g.web)
}

func managementPort(t *testing.T, g *gateway) {
	g.web.get(t, "/v1/x", "x-user-id", "counted")
	g.web.get(t, "/v1/x", "x-user-id", "counted")
	out := sluiceOK(t, "counters", "get", "--rule", "per-user", "--key", "counted", "--output", "json",
		"--manage-token-file", file(t, "token", token), "--proxy", "http://"+g.manage.address+"/.sluice/")
	require.Contains(t, out, `"value": 2`)
	res, _ := g.web.get(t, "/.sluice/counters/get?rule=per-user&key=counted", ":method", http.MethodPost, "authorization",
		bearer)
	require.Equal(t, http.StatusNotFound, res.StatusCode, "clients reach no counters")
}

// admin is the admin interface of the proxy that listens there.
func (g *gateway) admin(t *testing.T, p *proxy) string {
	files, err := filepath.Glob(g.path("run/*/admin-address.txt"))
	require.NoError(t, err)
	for _, name := range files {
		admin := "http://" + strings.TrimSpace(read(t, name))
		if strings.Contains(body(t, admin+"/listeners"), ":"+port(p.address)+"\n") {
			return admin
		}
	}
	require.FailNow(t, "no proxy listens there", "%s; admin interfaces: %v", p.address, files)
	return ""
}

func labelledMetrics(t *testing.T, g *gateway) {
	g.web.admin = g.admin(t, g.web)
	eventually(t, 10*time.Second, "the metrics of a rule", func() bool {
		passed, _ := g.web.metric(t, "rate_limit_allowed_total", "per-subject")
		refused, _ := g.web.metric(t, "rate_limit_denied_total", "per-subject")
		return passed == 4 && refused > 0
	})
}

func loggedVerdict(t *testing.T, g *gateway) {
	eventually(t, 20*time.Second, "the verdicts in the access log", func() bool {
		lines := slices.Collect(strings.Lines(read(t, g.path("access.log"))))
		return slices.Contains(lines, "429 dave per-user=denied:limit\n") && slices.Contains(lines, "200 counted -\n")
	})
}

// everywhere is a policy of the route that both Gateways have.
func (g *gateway) everywhere(t *testing.T) string {
	policy := "version: 1\nrules: [{name: shared, scope: cluster, on_unavailable: deny, " +
		"key: [{header: x-user-id}], missing_key: deny, limits: [10/" + far + "]}]\n"
	return g.render(t, policy, append(g.from(t, g.files, "sluice.wasm"), "--name", "everywhere",
		"--target", "HTTPRoute/everywhere", "--quota-cluster", "grpcroute/edge/quota/rule/0")...)
}

func newProxyRefused(t *testing.T, g *gateway) {
	const second = "{name: second, sectionName: web}"
	manage := port(freeAddress(t))
	// One file, because Envoy Gateway takes seconds to read a change, and each by itself.
	apply := func(parents, policy string) {
		g.apply(t, "second", strings.Join([]string{
			g.fill(t, "envoygateway-wasm.yaml", map[string]any{"Dir": g.dir, "Gateway": "second"}),
			g.fill(t, "envoygateway-second.yaml", map[string]any{
				"Second": port(g.second.address), "SecondManage": manage, "Quota": port(g.quota), "Parents": parents}),
			policy}, "\n---\n"))
	}
	apply(second, replaced(t, g.everywhere(t), "10/"+far, "10/1parsec"))
	awaitStatus(t, http.StatusServiceUnavailable, g.second, "/everywhere")
	apply("{name: edge, sectionName: web}, "+second, g.everywhere(t))
	for _, p := range []*proxy{g.web, g.second} {
		awaitStatus(t, denied, p, "/everywhere", "x-user-id", "without a quota service")
	}
}

// The cluster is the one of the page, on both Gateways.
func overTwoProxies(t *testing.T, g *gateway) {
	q := &quotaService{address: g.quota, http: freeAddress(t), store: "memory"}
	q.start(t)
	t.Cleanup(q.kill)
	route := block(t, "envoy-gateway.md", "kind: GRPCRoute")
	route = replaced(t, route, "  rules:\n", "  - {name: second, sectionName: manage}\n  rules:\n")
	g.apply(t, "quota", replaced(t, route, "{name: quota, port: 18001}",
		"{group: gateway.envoyproxy.io, kind: Backend, name: quota}"))
	for _, p := range []*proxy{g.web, g.second} {
		n := 0
		eventually(t, 30*time.Second, "units of the quota service", func() bool {
			n++
			res, _, err := p.try("/everywhere", "x-user-id", fmt.Sprint("trial", n, p.address), "connection", "close")
			return err == nil && res.StatusCode == allowed
		})
	}
	passed := map[string]int{}
	for i := range 40 {
		p := []*proxy{g.web, g.second}[i%2]
		if res, _, err := p.try("/everywhere", "x-user-id", "alice", "connection", "close"); err == nil &&
			res.StatusCode == allowed {
			passed[p.address]++
		}
	}
	require.Equal(t, 10, passed[g.web.address]+passed[g.second.address], "%v", passed)
	require.Len(t, passed, 2, "both proxies took part")
}
