//go:build istio

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// site is a gateway and a sidecar of a mesh, and a web server with the filter.
type istioSite struct {
	*mesh

	gateway *child.Child // its agent
	files   *httptest.Server
	url     string // of the filter
	sha256  string
}

// TestIstio has the real Istio load what `sluice render istio` writes: istiod out of a
// real API server, pilot-agent, and the official Envoy.
func TestIstio(t *testing.T) {
	s := &istioSite{mesh: startMesh(t)}
	wasm := []byte(read(t, built.filter))
	s.sha256 = digestOf(wasm)
	s.files = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(binary(wasm, r.URL.Path))
	}))
	defer s.files.Close()
	s.url = s.files.URL + "/sluice.wasm"
	s.gateway = s.startProxy(t, "router", "edge", "10.9.9.9", `{"istio": "edge", "gateway.networking.k8s.io/gateway-name": "edge"}`, gatewayAdmin)
	s.startProxy(t, "sidecar", "shop", "10.9.9.8", `{"app": "shop"}`, sidecarAdmin, "ISTIO_META_INTERCEPTION_MODE=NONE")
	for _, port := range []int{gatewayPort, managePort, sidecarPort, otherPort, outgoingPort} {
		awaitStatus(t, allowed, at(port), "/", append(calls, "x-user-id", "nobody")...)
	}
	for _, kind := range []string{"wasm-plugin", "traffic-extension"} {
		t.Run(kind, func(t *testing.T) { s.life(t, kind) })
	}
	t.Run("file in the proxy's container", s.fromFile)
	t.Run("ConfigMap that pods mount", s.fromConfigMap)
	t.Run("size of a ConfigMap", s.configMapSize)
	t.Run("a release's image from a private registry, by its digest", s.fromRegistry)
	t.Run("resources of the page", s.page)
	t.Run("manifests of serve and quota", s.manifests)
	t.Run("targets", s.targets)
	t.Run("waypoint", s.waypoint)
	t.Run("selector", s.selector)
	t.Run("phase", s.phase)
	t.Run("JWT claim as key", s.claim)
	t.Run("tokens of answers, and requests in flight", s.answers)
	t.Run("management on a port of its own", s.manage)
	t.Run("sidecar, by mode and port", s.sidecar)
	t.Run("root namespace", s.rootNamespace)
	t.Run("limit over all proxies", s.quota)
	t.Run("metrics have the rule as a label", s.metrics)
	t.Run("access log shows the verdict", s.logs)
}

// binary is the filter, or one that differs in a custom section and does the same.
func binary(wasm []byte, path string) []byte {
	if path == "/sluice.wasm" {
		return wasm
	}
	return slices.Concat(wasm, []byte{0, byte(1 + len(path)), byte(len(path))}, []byte(path))
}

// limited is a policy with one rule of a name.
func limited(name, limits, more string) string {
	return "version: 1\ndomain: " + name + "\nheaders: ietf\n" + more + "rules:\n- {name: " + name + ", key: [{header: x-user-id}], limits: [" + limits + "]}\n"
}

// render returns the resource that `sluice render istio` writes.
func (s *istioSite) render(t *testing.T, policy string, flags ...string) string {
	args := append([]string{"render", "istio", "-f", file(t, "policy.yaml", policy)}, flags...)
	if !slices.Contains(flags, "--url") && !slices.Contains(flags, "--wasm-configmap") {
		args = append(args, "--url", s.url, "--sha256", s.sha256)
	}
	if !slices.Contains(flags, "-n") {
		args = append(args, "-n", "edge")
	}
	return sluiceOK(t, args...)
}

// with applies a resource for the length of a subtest.
func (s *istioSite) with(t *testing.T, resource string) {
	s.kube.apply(t, resource)
	t.Cleanup(func() { s.kube.remove(t, resource) })
}

// at is the proxy that listens at a port.
func at(port int) *proxy { return &proxy{address: fmt.Sprint("127.0.0.1:", port)} }

// calls is the host that the application calls.
var calls = []string{":host", "upstream.example"}

// spend sends requests of a user and returns how many got through.
func spend(p *proxy, n int, user string) (through int) {
	for range n {
		if res, _, err := p.try("/", append(calls, "x-user-id", user, "connection", "close")...); err == nil && res.StatusCode == allowed {
			through++
		}
	}
	return through
}

// limits applies a limit of so many units for the length of a subtest, and requires it to hold.
func (s *istioSite) limits(t *testing.T, port, units int, name string, flags ...string) {
	s.with(t, s.render(t, limited(name, fmt.Sprint(units, "/", far), ""), flags...))
	awaitLimit(t, at(port), "/", name, units, calls...)
	passes(t, units, at(port), "/", "alice", calls...)
}

// life goes through what an operator does to a resource of a kind.
func (s *istioSite) life(t *testing.T, kind string) {
	flags := []string{"--kind", kind, "--target", "Gateway/edge"}
	render := func(limit string, more ...string) string {
		return s.render(t, limited(kind, limit, ""), slices.Concat(flags, more)...)
	}
	s.with(t, render("10/"+far))
	other := s.files.URL + "/" + kind
	wrong := []string{"--url", other, "--sha256", strings.Repeat("0", 64)}
	// keeps changes the limit, and requires that what is spent stays so.
	keeps := func(limit, more int, flags ...string) {
		s.kube.apply(t, render(fmt.Sprint(limit, "/", far), flags...))
		awaitLimit(t, at(gatewayPort), "/", kind, limit)
		passes(t, more, at(gatewayPort), "/", "alice")
	}
	t.Run("the 11th request gets 429", func(t *testing.T) { keeps(10, 10) })
	t.Run("Envoy's name of it", func(t *testing.T) {
		name := map[string]string{"wasm-plugin": "edge.sluice" + translated, "traffic-extension": "edge.sluice"}[kind]
		dump := s.admin(t, "/config_dump?resource=ecds_filters")
		require.Contains(t, dump, fmt.Sprintf("%q", name))
		require.Contains(t, dump, `"failure_policy": "FAIL_RELOAD"`)
	})
	t.Run("a change keeps the counters", func(t *testing.T) { keeps(15, 5) })
	t.Run("a refused policy leaves the limits on", func(t *testing.T) {
		before := strings.Count(s.gateway.Log(), "policy refused: ")
		s.kube.apply(t, strings.Replace(render("10/"+far), "10/"+far, "10/1parsec", 1))
		eventually(t, 60*time.Second, "the refusal", func() bool { return strings.Count(s.gateway.Log(), "policy refused: ") > before })
		passes(t, 0, at(gatewayPort), "/", "alice")
		passes(t, 15, at(gatewayPort), "/", "during-"+kind)
	})
	t.Run("a mended policy is taken", func(t *testing.T) { keeps(20, 5) })
	t.Run("another binary keeps the counters", func(t *testing.T) {
		keeps(22, 2, "--url", other, "--sha256", digestOf(binary([]byte(read(t, built.filter)), "/"+kind)))
	})
	t.Run("a wrong digest stops the filter", func(t *testing.T) {
		s.kube.apply(t, render("22/"+far, wrong...))
		awaitStatus(t, http.StatusForbidden, at(gatewayPort), "/", "x-user-id", "bob")
		s.kube.apply(t, render("23/"+far))
		awaitLimit(t, at(gatewayPort), "/", kind, 23)
		// Istio may or may not keep the VM, and the counters with it.
		require.Contains(t, []int{1, 23}, spend(at(gatewayPort), 24, "alice"))
	})
}

func (s *istioSite) fromFile(t *testing.T) {
	path := filepath.Join(s.dir, "sluice.wasm")
	require.NoError(t, os.Link(built.filter, path))
	s.limits(t, gatewayPort, 2, "file", "--target", "Gateway/edge", "--url", "file://"+path)
}

// targets: a Gateway limits its own proxies. For the others see waypoint.
func (s *istioSite) targets(t *testing.T) {
	s.with(t, s.render(t, limited("targets", "2/"+far, ""), "--name", "another", "--target", "Gateway/another"))
	s.limits(t, gatewayPort, 3, "edge", "--target", "Gateway/edge")
}

func (s *istioSite) selector(t *testing.T) {
	s.limits(t, gatewayPort, 2, "selector", "--selector", "istio=edge")
	res, _ := at(sidecarPort).get(t, "/", "x-user-id", "alice", "connection", "close")
	require.Empty(t, res.Header.Get("RateLimit"))
}

// phase: a request that Istio's authorization denies counts only before it.
func (s *istioSite) phase(t *testing.T) {
	private := func() int {
		return at(gatewayPort).status(t, "/private", "x-user-id", "mallory", "connection", "close")
	}
	for _, c := range []struct {
		phase string
		after int
	}{{"", http.StatusForbidden}, {"authz", denied}} {
		t.Run("before "+c.phase, func(t *testing.T) {
			name := "phase" + c.phase
			flags := []string{"--target", "Gateway/edge"}
			if c.phase != "" {
				flags = append(flags, "--phase", c.phase, "--priority", "7")
			}
			s.with(t, s.render(t, limited(name, "2/"+far, ""), flags...))
			awaitLimit(t, at(gatewayPort), "/", name, 2)
			for range 2 {
				require.Equal(t, http.StatusForbidden, private())
			}
			require.Equal(t, c.after, private())
		})
	}
}

func (s *istioSite) claim(t *testing.T) {
	s.with(t, s.render(t, "version: 1\ndomain: claim\nheaders: ietf\nrules:\n"+
		"- {name: claim, key: [{jwt: {provider: payload, claim: sub}}], missing_key: deny, limits: [2/"+far+"]}\n", "--target", "Gateway/edge"))
	eventually(t, 60*time.Second, "the rule to deny without a token", func() bool {
		return at(gatewayPort).status(t, "/", "connection", "close") == denied // without x-user-id, so that no earlier rule denies
	})
	for _, user := range []string{"alice", "bob"} {
		for _, want := range []int{allowed, allowed, denied} {
			require.Equal(t, want, at(gatewayPort).status(t, "/", "authorization", s.tokens.sign(t, `{"iss":"e2e","sub":"`+user+`"}`), "connection", "close"), user)
		}
	}
	require.Equal(t, http.StatusUnauthorized, at(gatewayPort).status(t, "/", "authorization", newTokens(t).sign(t, `{"iss":"e2e","sub":"carol"}`), "connection", "close"))
}

func (s *istioSite) answers(t *testing.T) {
	s.with(t, s.render(t, answersPolicy, "--target", "Gateway/edge"))
	requireAnswersCount(t, at(gatewayPort))
}

func (s *istioSite) manage(t *testing.T) {
	const secret = "only-for-this-test"
	manage := fmt.Sprintf("manage: {path: /.sluice/, port: %d, token_sha256: %q}\n", managePort, digestOf([]byte(secret)))
	// After authentication Istio would take the token for a JWT, and answer 401.
	s.with(t, s.render(t, limited("managed", "5/"+far, manage), "--target", "Gateway/edge", "--phase", "authn"))
	for _, port := range []int{gatewayPort, managePort} { // two listeners, and two changes
		awaitLimit(t, at(port), "/", "managed", 5, calls...)
	}
	require.Equal(t, 3, spend(at(gatewayPort), 3, "alice"))
	counters := func(port int) (stdout, stderr string, exit int) {
		return sluice(t, "counters", "get", "--rule", "managed", "--key", "alice", "--manage-token-file", file(t, "token", secret),
			"--proxy", fmt.Sprintf("http://127.0.0.1:%d/.sluice/", port), "-o", "json")
	}
	out, errs, exit := counters(managePort)
	require.Zero(t, exit, errs)
	require.Regexp(t, `"used": *3\b`, out)
	_, _, exit = counters(gatewayPort)
	require.NotZero(t, exit, "clients' port answers operators")
}

func (s *istioSite) sidecar(t *testing.T) {
	s.limits(t, sidecarPort, 2, "sidecar", "--selector", "app=shop", "--mode", "server", "--port", fmt.Sprint(sidecarPort))
	for _, port := range []int{otherPort, outgoingPort, gatewayPort} {
		require.Equal(t, 5, spend(at(port), 5, "alice"))
	}
}

func (s *istioSite) rootNamespace(t *testing.T) {
	s.with(t, s.render(t, limited("root", "4/"+far, ""), "-n", "istio-system"))
	for _, port := range []int{gatewayPort, sidecarPort, outgoingPort} {
		awaitLimit(t, at(port), "/", "root", 4, calls...)
	}
	require.Equal(t, 4, spend(at(gatewayPort), 6, "alice"))
	// Without --mode, what the application calls counts too, with what comes in.
	require.Equal(t, 2, spend(at(sidecarPort), 2, "alice"))
	require.Equal(t, 2, spend(at(outgoingPort), 4, "alice"))
}

// admin asks the gateway's Envoy.
func (s *istioSite) admin(t *testing.T, path string) string {
	return body(t, fmt.Sprintf("http://127.0.0.1:%d%s", gatewayAdmin, path))
}

func (s *istioSite) metrics(t *testing.T) {
	eventually(t, 30*time.Second, "the metrics", func() bool {
		return strings.Contains(s.admin(t, "/stats/prometheus"), `rate_limit_denied_total{domain="root",rule="root"}`)
	})
}

func (s *istioSite) logs(t *testing.T) {
	eventually(t, 30*time.Second, "the access log", func() bool {
		return strings.Contains(read(t, s.accessLog()), "429 rate_limited{root} root=denied:limit\n")
	})
}
