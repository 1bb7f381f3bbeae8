//go:build istio

package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// istioSite is a gateway and a sidecar of a mesh, and a web server with the filter.
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
	s.gateway = s.startProxy(t, "router", "edge", "10.9.9.9",
		`{"istio": "edge", "gateway.networking.k8s.io/gateway-name": "edge"}`, gatewayAdmin)
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
	return "version: 1\ndomain: " + name + "\nheaders: ietf\n" + more + "rules:\n- {name: " + name +
		", key: [{header: x-user-id}], limits: [" + limits + "]}\n"
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
		if res, _, err := p.try("/", append(calls, "x-user-id", user, "connection", "close")...); err == nil &&
			res.StatusCode == allowed {
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
		eventually(t, 60*time.Second, "the refusal",
			func() bool { return strings.Count(s.gateway.Log(), "policy refused: ") > before })
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
		"- {name: claim, key: [{jwt: {provider: payload, claim: sub}}], missing_key: deny, limits: [2/"+far+"]}\n",
		"--target", "Gateway/edge"))
	eventually(t, 60*time.Second, "the rule to deny without a token", func() bool {
		// Without x-user-id, so that no earlier rule denies.
		return at(gatewayPort).status(t, "/", "connection", "close") == denied
	})
	for _, user := range []string{"alice", "bob"} {
		for _, want := range []int{allowed, allowed, denied} {
			require.Equal(t, want, at(gatewayPort).status(t, "/", "authorization",
				s.tokens.sign(t, `{"iss":"e2e","sub":"`+user+`"}`), "connection", "close"), user)
		}
	}
	require.Equal(t, http.StatusUnauthorized,
		at(gatewayPort).status(t, "/",
			"authorization", newTokens(t).sign(t, `{"iss":"e2e","sub":"carol"}`), "connection", "close"))
}

func (s *istioSite) answers(t *testing.T) {
	s.with(t, s.render(t, answersPolicy, "--target", "Gateway/edge"))
	requireAnswersCount(t, at(gatewayPort))
}

func (s *istioSite) manage(t *testing.T) {
	const secret = "only-for-this-test"
	manage := fmt.Sprintf("manage: {path: /.sluice/, port: %d, token_sha256: %q}\n",
		managePort, digestOf([]byte(secret)))
	// After authentication Istio would take the token for a JWT, and answer 401.
	s.with(t, s.render(t, limited("managed", "5/"+far, manage), "--target", "Gateway/edge", "--phase", "authn"))
	for _, port := range []int{gatewayPort, managePort} { // two listeners, and two changes
		awaitLimit(t, at(port), "/", "managed", 5, calls...)
	}
	require.Equal(t, 3, spend(at(gatewayPort), 3, "alice"))
	counters := func(port int) (stdout, stderr string, exit int) {
		return sluice(t, "counters", "get", "--rule", "managed", "--key", "alice", "--manage-token-file",
			file(t, "token", secret),
			"--proxy", fmt.Sprintf("http://127.0.0.1:%d/.sluice/", port), "-o", "json")
	}
	out, errs, exit := counters(managePort)
	require.Zero(t, exit, errs)
	require.Regexp(t, `"used": *3\b`, out)
	_, _, exit = counters(gatewayPort)
	require.NotZero(t, exit, "clients' port answers operators")
}

func (s *istioSite) sidecar(t *testing.T) {
	s.limits(t, sidecarPort, 2, "sidecar", "--selector", "app=shop",
		"--mode", "server", "--port", fmt.Sprint(sidecarPort))
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

// applyInjector has istiod put sidecars into pods, and make Deployments for Gateways, by
// the templates of its release.
func (m *mesh) applyInjector(t *testing.T) {
	for _, document := range betweenDocuments.Split(read(t, m.installed, "istiod.yaml"), -1) {
		if strings.Contains(document, "\nkind: ConfigMap\n") &&
			strings.Contains(document, "\n  name: istio-sidecar-injector\n") {
			m.kube.apply(t, document)
		}
	}
	m.kube.apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: injector}
webhooks:
- name: object.sidecar-injector.istio.io
  clientConfig: {url: "https://127.0.0.1:%d/inject", caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  admissionReviewVersions: [v1]
  sideEffects: None
`, injectorPort, base64.StdEncoding.EncodeToString([]byte(read(t, m.certs.ca)))))
}

// fromConfigMap does what `sluice render istio` writes in its comment. Istio puts the
// volume into the pods of a sidecar and of a gateway. What the kubelet then does, mount
// does: there is none.
func (s *istioSite) fromConfigMap(t *testing.T) {
	flags := []string{"--wasm-configmap", "sluice-1", "--wasm", built.filter}
	onGateway := s.render(t, limited("mounted", "2/"+far, ""), append(flags, "--target", "Gateway/edge")...)
	flags = append(flags, "--name", "shop", "--selector", "app=shop", "--mode", "server")
	onSidecar := s.render(t, limited("mounted", "3/"+far, ""), flags...)
	s.with(t, onSidecar)
	awaitStatus(t, http.StatusInternalServerError, at(sidecarPort), "/", "x-user-id", "before the file is there")

	s.with(t, configMapOf(t, onGateway))
	s.with(t, mounting(onSidecar))
	var sidecar pod
	require.True(t, s.kube.read(t, "/api/v1/namespaces/edge/pods/mounting", &sidecar))
	s.mount(t, "shop", sidecar)
	var deployment struct{ Spec struct{ Template pod } }
	eventually(t, 60*time.Second, "istiod to make the gateway's Deployment", func() bool {
		return s.kube.read(t, "/apis/apps/v1/namespaces/edge/deployments/mounting-istio", &deployment)
	})
	s.mount(t, "edge", deployment.Spec.Template)

	s.with(t, onGateway)
	awaitLimit(t, at(gatewayPort), "/", "mounted", 2)
	passes(t, 2, at(gatewayPort), "/", "alice")
	s.kube.apply(t, s.render(t, limited("mounted", "4/"+far, ""), flags...)) // nothing else has it look again
	awaitLimit(t, at(sidecarPort), "/", "mounted", 4)
	passes(t, 4, at(sidecarPort), "/", "alice")
}

var made = regexp.MustCompile(`\n#   kubectl create configmap (\S+) -n (\S+) --from-file=(\S+)='(.+)'\n` +
	`#   kubectl patch configmap (\S+) -n (\S+) -p '{(.+)}'\n`)

// configMapOf is what the commands in a comment make.
func configMapOf(t *testing.T, comment string) string {
	found := made.FindStringSubmatch(comment)
	require.NotNil(t, found, comment)
	require.Equal(t, found[1:3], found[5:7])
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, "+
		"metadata: {name: %s, namespace: %s}, binaryData: {%s: %s}, %s}",
		found[1], found[2], found[3], base64.StdEncoding.EncodeToString([]byte(read(t, found[4]))), found[7])
}

// configMapSize: the API server takes of data what `sluice render istio` takes.
func (s *istioSite) configMapSize(t *testing.T) {
	for size, want := range map[int]int{envoy.MaxConfigMap: http.StatusCreated, envoy.MaxConfigMap +
		1: http.StatusUnprocessableEntity} {
		status, answer := s.kube.call(t, http.MethodPost, "/api/v1/namespaces/edge/configmaps?dryRun=All",
			`{"metadata": {"name": "large"}, "binaryData": {"sluice.wasm": "`+
				base64.StdEncoding.EncodeToString(make([]byte, size))+`"}}`)
		require.Equal(t, want, status, "%.500s", answer)
	}
}

var (
	annotations = regexp.MustCompile(`(?m)^#   sidecar\.istio\.io/.*\n`)
	overlay     = regexp.MustCompile(`(?m)^#   deployment: .*\n(#     .*\n)+`)
)

// mounting are a pod with a sidecar and a Gateway that mount the ConfigMap as a comment
// says.
func mounting(comment string) string {
	sidecar, gateway := strings.Join(annotations.FindAllString(comment, -1), ""), overlay.FindString(comment)
	return `
apiVersion: v1
kind: Pod
metadata:
  name: mounting
  namespace: edge
  annotations:
` + strings.ReplaceAll(sidecar, "#", " ") + `
spec:
  serviceAccountName: shop
  containers: [{name: shop, image: shop.example/shop}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mounting, namespace: edge}
data:
` + strings.ReplaceAll(gateway, "#", "") + `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: mounting, namespace: edge}
spec:
  gatewayClassName: istio
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: mounting}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
`
}

// pod is what matters here of a Pod and of a Deployment's template.
type pod struct {
	Spec struct {
		Containers, InitContainers []container
		Volumes                    []struct {
			Name      string
			ConfigMap struct{ Name string }
		}
	}
}

type container struct {
	Name         string
	VolumeMounts []struct {
		Name, MountPath string
		ReadOnly        bool
	}
}

// configMapIn is the ConfigMap that a pod's proxy has at a path.
func (p *pod) configMapIn(path string) string {
	for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
		for _, m := range c.VolumeMounts {
			for _, v := range p.Spec.Volumes {
				if c.Name == "istio-proxy" && m.ReadOnly && m.MountPath == path && v.Name == m.Name {
					return v.ConfigMap.Name
				}
			}
		}
	}
	return ""
}

// mount puts into a proxy's folder what the kubelet would: the ConfigMap's files, behind
// links.
func (s *istioSite) mount(t *testing.T, proxy string, p pod) {
	name := p.configMapIn(envoy.ConfigMap{}.Folder())
	require.NotEmpty(t, name, p)
	var stored struct{ BinaryData map[string][]byte }
	require.True(t, s.kube.read(t, "/api/v1/namespaces/edge/configmaps/"+name, &stored))
	folder := filepath.Join(s.dir, proxy, "configmap")
	require.NoError(t, os.Mkdir(filepath.Join(folder, "..1"), 0o755))
	require.NoError(t, os.Symlink("..1", filepath.Join(folder, "..data")))
	for key, content := range stored.BinaryData {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "..1", key), content, 0o644))
		require.NoError(t, os.Symlink(filepath.Join("..data", key), filepath.Join(folder, key)))
	}
}

// fromRegistry has pilot-agent pull a release's images. It refuses a realm that is no URL.
func (s *istioSite) fromRegistry(t *testing.T) {
	images := startImages(t, s.certs.ca, s.certs.pair)
	address := host(images.Server)
	named := registryName + ":" + port(address)
	s.with(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: registry, namespace: edge}\n"+
		"type: kubernetes.io/dockerconfigjson\n"+
		"data: {.dockerconfigjson: "+pullSecret(t, address, named)+"}\n")
	flags := []string{"--target", "Gateway/edge", "--url"}
	secret := []string{"--pull-secret", "registry"}
	for form, url := range images.pushRelease(t) {
		policy := limited(form, "2/"+far, "")
		byName := slices.Concat(flags, []string{strings.Replace(url, address, named, 1)})
		t.Run(form, func(t *testing.T) {
			s.with(t, s.render(t, policy, byName...))
			awaitStatus(t, http.StatusForbidden, at(gatewayPort), "/", "x-user-id", "without the password")
			s.kube.apply(t, s.render(t, policy, slices.Concat(byName, secret)...))
			awaitLimit(t, at(gatewayPort), "/", form, 2)
			passes(t, 2, at(gatewayPort), "/", "alice")
		})
		t.Run(form+", by an address whose realm is no URL", func(t *testing.T) {
			s.with(t, s.render(t, policy, slices.Concat(flags, []string{url}, secret)...))
			awaitStatus(t, http.StatusForbidden, at(gatewayPort), "/", "x-user-id", "alice")
			require.Contains(t, s.gateway.Log(), `realm scheme "" not allowed`)
		})
	}
}

// page has the API server check the resources of docs/istio.md.
func (s *istioSite) page(t *testing.T) {
	for _, kind := range []string{"name: sluice-quota", "name: no-underscores"} {
		s.kube.accepts(t, block(t, "istio.md", kind))
	}
}

// quota: rules of scope cluster count over the gateway and the sidecar. They ask a
// real `sluice quota`, which is a service of the mesh as docs/istio.md has it.
func (s *istioSite) quota(t *testing.T) {
	service := startQuota(t, "memory")
	_, port, err := net.SplitHostPort(service.address)
	require.NoError(t, err)
	// In Kubernetes it is a Service.
	s.with(t, strings.ReplaceAll(read(t, "testdata/istio-quota.yaml"), "QUOTA_PORT", port))
	s.with(t, strings.ReplaceAll(block(t, "istio.md", "name: sluice-quota"), "quota.shop.svc.cluster.local",
		"quota.example"))
	s.with(t, s.render(t, "version: 1\ndomain: shop\nheaders: ietf\nrules:\n"+
		"- {name: everywhere, scope: cluster, key: [{header: x-user-id}], "+
		"on_unavailable: deny, limits: [10/"+far+"]}\n",
		"--quota-cluster", "outbound|18001||quota.example"))
	proxies := []int{gatewayPort, sidecarPort}
	for _, port := range proxies {
		eventually(t, 60*time.Second, "units for a proxy", func() bool {
			res, _, err := at(port).try("/", "x-user-id", fmt.Sprint("first-", port), "connection", "close")
			return err == nil && strings.HasPrefix(res.Header.Get("RateLimit"), `"everywhere";`) &&
				spend(at(port), 1, fmt.Sprint("second-", port)) == 1
		})
	}
	through := 0
	for i := range 40 {
		through += spend(at(proxies[i%2]), 1, "alice")
	}
	require.Equal(t, 10, through)
}

// waypoint shows what istiod sends to a waypoint. The official Envoy cannot run one: its
// listeners take filters that only Istio's own builds have.
func (s *istioSite) waypoint(t *testing.T) {
	s.kube.apply(t, read(t, "testdata/istio-waypoint.yaml"))
	const service, entry = "behind.edge.svc.cluster.local", "outside.example"
	for _, c := range []struct {
		target, namespace string
		limits            []string
	}{
		{"Service/behind", "edge", []string{service}},
		{"ServiceEntry/outside", "edge", []string{entry}},
		{"Gateway/waypoint", "edge", []string{service, entry}},
		{"GatewayClass/istio-waypoint", "istio-system", []string{service, entry}},
	} {
		t.Run(c.target, func(t *testing.T) {
			s.with(t, s.render(t, limited("waypoint", "2/"+far, ""), "-n", c.namespace, "--target", c.target))
			eventually(t, 60*time.Second, "istiod to send the plugin", func() bool {
				return slices.Equal(c.limits, s.limitedHosts(t, c.namespace+".sluice"+translated, service, entry))
			})
		})
	}
}

// translated is what Istio puts behind the name of a WasmPlugin.
const translated = "~istio-translated-wasmplugin"

// limitedHosts asks istiod, as a waypoint does, and returns the hosts whose requests go
// through a plugin.
func (s *istioSite) limitedHosts(t *testing.T, plugin string, hosts ...string) (with []string) {
	connection, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", discoveryPort),
		grpc.WithTransportCredentials(credentials.NewTLS(
			&tls.Config{
				RootCAs: s.certs.pool, Certificates: []tls.Certificate{s.certs.pair}, MinVersion: tls.VersionTLS12,
			})))
	require.NoError(t, err)
	defer connection.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).StreamAggregatedResources(t.Context())
	require.NoError(t, err)
	metadata, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "edge", "SERVICE_ACCOUNT": "edge", "CLUSTER_ID": "Kubernetes",
		"LABELS": map[string]any{"gateway.networking.k8s.io/gateway-name": "waypoint"},
	})
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener",
		Node:    &corev3.Node{Id: "waypoint~10.9.9.7~waypoint.edge~edge.svc.cluster.local", Metadata: metadata},
	}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	for _, resource := range answer.Resources {
		var listener listenerv3.Listener
		require.NoError(t, resource.UnmarshalTo(&listener))
		for _, chain := range listener.FilterChains {
			text, err := proto.Marshal(chain)
			require.NoError(t, err)
			for _, host := range hosts {
				if chain.Name == "inbound-vip|80|http|"+host && bytes.Contains(text, []byte(plugin)) {
					with = append(with, host)
				}
			}
		}
	}
	slices.Sort(with)
	return with
}

// Ports on which the proxies listen.
const (
	gatewayPort  = 25180
	managePort   = 25181
	sidecarPort  = 25280
	otherPort    = 25281 // of the sidecar too
	outgoingPort = 25283
	gatewayAdmin = 25900
	sidecarAdmin = 25910
)

// Istio's own way to normalise, and the access log of docs/envoy.md.
const meshConfig = `
enablePrometheusMerge: false
defaultProviders: {}
trustDomain: cluster.local
rootNamespace: istio-system
ingressControllerMode: "OFF"
enableAutoMtls: false
accessLogFile: ACCESS_LOG
accessLogFormat: "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %FILTER_STATE(wasm.sluice.verdict:PLAIN)%\n"
`

// meshResources are a gateway, a sidecar, and the server behind both.
func meshResources(t *testing.T, upstream int, keys string) string {
	return strings.NewReplacer(
		"GATEWAY_PORT", fmt.Sprint(gatewayPort), "MANAGE_PORT", fmt.Sprint(managePort),
		"SIDECAR_PORT", fmt.Sprint(sidecarPort), "OTHER_PORT", fmt.Sprint(otherPort),
		"OUTGOING_PORT", fmt.Sprint(outgoingPort), "UPSTREAM_PORT", fmt.Sprint(upstream), "JWKS", keys,
	).Replace(read(t, "testdata/istio.yaml"))
}
