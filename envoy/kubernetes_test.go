package envoy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const commentedPolicy = `# Limits of the shop.
version: 1
rules:
  # Each user.
  - name: per-user
    key: [{header: x-user-id}]
    limits: [10/1m] # generous
    mode: off
`

const commentedJSON = `{"version":1,"rules":[{"key":[{"header":"x-user-id"}],"limits":["10/1m"],"mode":"off",` +
	`"name":"per-user"}]}`

var (
	digest   = strings.Repeat("0123456789abcdef", 4)
	priority = int32(-5)
)

// resources are the shapes of custom resources, by golden file. Beside it lies, as .json,
// what the product's types hold of it.
var resources = map[string]func() ([]byte, error){
	"istio/wasmplugin": func() ([]byte, error) {
		return Istio(IstioOptions{
			Object:  Object{Namespace: "edge"},
			Fetch:   Fetch{URL: "oci://registry.example:5000/shop/sluice:1.0.0"},
			Policy:  []byte(commentedPolicy),
			Targets: []string{"Gateway/edge", "Service/shop", "ServiceEntry/partner.example", "GatewayClass/istio-waypoint"},
		})
	},
	"istio/wasmplugin-all": func() ([]byte, error) {
		return Istio(IstioOptions{
			Object:   Object{Name: "1e3", Namespace: "010"},
			Policy:   []byte(commentedPolicy),
			Phase:    "AUTHZ",
			Priority: &priority,
			Mode:     "SERVER",
			Ports:    []int{80, 8080},
			Fetch:    Fetch{URL: "oci://r.example/sluice@sha256:" + digest, SHA256: digest, PullSecret: "0x1f"},
			Selector: map[string]string{"app": "on", "shop.example/tier": "1_0", "y": ""}, FailStrategy: "FAIL_CLOSE",
		})
	},
	"istio/trafficextension": func() ([]byte, error) {
		return Istio(IstioOptions{
			Object:   Object{Name: "limits", Namespace: "shop"},
			Kind:     TrafficExtensionKind,
			Policy:   []byte(commentedPolicy),
			Phase:    "STATS",
			Priority: &priority,
			Fetch:    Fetch{URL: "https://files.example/sluice.wasm?v=1", SHA256: digest},
			Mode:     "CLIENT_AND_SERVER", Targets: []string{"Gateway/edge"}, FailStrategy: "FAIL_OPEN",
		})
	},
	"istio/trafficextension-file": func() ([]byte, error) {
		return Istio(IstioOptions{
			Kind:   TrafficExtensionKind,
			Policy: []byte(commentedPolicy),
			Ports:  []int{1},
			Fetch:  Fetch{URL: "file:///opt/sluice.wasm"},
		})
	},
	"istio/wasmplugin-configmap": func() ([]byte, error) {
		return Istio(IstioOptions{
			Object: Object{Namespace: "edge"},
			Policy: []byte(commentedPolicy),
			Mount:  ConfigMap{Name: "1e3", File: "/home/a b/$(c).wasm"},
			Mode:   "SERVER",
		})
	},
	"envoygateway/image": func() ([]byte, error) {
		return EnvoyGateway(EnvoyGatewayOptions{
			Object:  Object{Namespace: "edge"},
			Policy:  []byte(commentedPolicy),
			Targets: []string{"Gateway/edge/http", "HTTPRoute/shop", "GRPCRoute/shop"},
			Fetch:   Fetch{URL: "oci://r.example/sluice:1.0.0", SHA256: digest, PullSecret: "registry"},
		})
	},
	"envoygateway/http": func() ([]byte, error) {
		return EnvoyGateway(EnvoyGatewayOptions{
			Object:   Object{Name: "limits"},
			Policy:   []byte(commentedPolicy),
			Targets:  []string{"Gateway/edge"},
			FailOpen: true,
			Fetch:    Fetch{URL: "http://files.shop/sluice.wasm"},
		})
	},
}

// Every shape is written as expected, and the published types have each field and accept each
// value.
func TestResourcesAreValidAndGolden(t *testing.T) {
	read := buildtest.Kubernetes(t)
	for name, render := range resources {
		t.Run(name, func(t *testing.T) {
			got, err := render()
			require.NoError(t, err)
			require.Contains(t, string(got), "# Limits of the shop.")
			requireGolden(t, name+".yaml", got)

			list, err := read(got)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.JSONEq(t, commentedJSON, list[0].Policy(t))
			held, err := json.MarshalIndent(list[0], "", "  ")
			require.NoError(t, err)
			requireGolden(t, name+".json", append(held, '\n'))
		})
	}
	const (
		plugin    = "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\n"
		extension = "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\n"
		gateway   = "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: EnvoyExtensionPolicy\n"
	)
	for name, planted := range map[string]string{
		"unknown field":     plugin + "spec: {url: 'oci://a/b', policy: {}}",
		"unknown word":      plugin + "spec: {url: 'oci://a/b', failStrategy: FAIL_FAST}",
		"wrong type":        extension + "spec: {wasm: {url: 1}}",
		"another's field":   extension + "spec: {url: 'oci://a/b'}",
		"metadata":          plugin + "metadata: {nam: a}\nspec: {url: 'oci://a/b'}",
		"twice":             plugin + "spec: {url: 'oci://a/b', url: 'oci://a/b'}",
		"envoy gateway":     gateway + "spec: {wasm: [{code: {type: HTTP, http: {url: a}}, root: a}]}",
		"version of theirs": "apiVersion: extensions.istio.io/v1\nkind: WasmPlugin\nspec: {url: 'oci://a/b'}",
	} {
		_, err := read([]byte(planted))
		require.Error(t, err, name)
	}
}

// refusedByIstio are changes to valid options, and what the error says.
var refusedByIstio = map[string]struct {
	change func(*IstioOptions)
	want   string
}{
	"name":      {func(o *IstioOptions) { o.Name = "A" }, `name "A": want lower-case`},
	"long name": {func(o *IstioOptions) { o.Name = strings.Repeat("a", 254) }, "at most 253"},
	"namespace": {func(o *IstioOptions) { o.Namespace = "a.b" }, `namespace "a.b": want`},
	"no URL": {
		change: func(o *IstioOptions) { o.URL = "" },
		want:   "no URL of the filter's wasm binary: want one of oci://",
	},
	"no scheme": {
		change: func(o *IstioOptions) { o.URL = "registry.example/sluice" },
		want:   "want one of oci://REGISTRY/IMAGE, https://HOST/PATH, http://HOST/PATH, file:///PATH",
	},
	"scheme":        {func(o *IstioOptions) { o.URL = "ftp://a/b" }, `url "ftp://a/b": want one of`},
	"half a scheme": {func(o *IstioOptions) { o.URL = "oci" }, `url "oci": want one of`},
	"image":         {func(o *IstioOptions) { o.URL = "oci://sluice" }, "want oci://REGISTRY/IMAGE:TAG"},
	"digest":        {func(o *IstioOptions) { o.URL = "oci://a/b@sha256:12" }, "want oci://REGISTRY/IMAGE:TAG"},
	"two digests": {
		change: func(o *IstioOptions) { o.URL, o.SHA256 = "oci://a/b@sha256:"+digest, strings.Repeat("0", 64) },
		want:   "sha256 is not the digest in the url",
	},
	"web address":      {func(o *IstioOptions) { o.URL = "https:///sluice.wasm" }, "want https://HOST/PATH"},
	"web user":         {func(o *IstioOptions) { o.URL = "https://u:p@a/b" }, "without user or fragment"},
	"file":             {func(o *IstioOptions) { o.URL = "file://opt/sluice.wasm" }, "want file:///PATH"},
	"file folder":      {func(o *IstioOptions) { o.URL = "file:///opt/" }, "want file:///PATH"},
	"sha256 of a file": {func(o *IstioOptions) { o.URL, o.SHA256 = "file:///a", digest }, "Istio does not check files"},
	"sha256":           {func(o *IstioOptions) { o.SHA256 = strings.ToUpper(digest) }, "want 64 digits 0-9a-f"},
	"ConfigMap": {
		change: func(o *IstioOptions) { o.URL, o.Mount = "", ConfigMap{"A", "/b"} },
		want:   `ConfigMap "A": want lower-case`,
	},
	"its file": {
		change: func(o *IstioOptions) { o.URL, o.Mount = "", ConfigMap{"a", "/b';c"} },
		want:   "want a path without quotes and line breaks",
	},
	"its file's line": {
		change: func(o *IstioOptions) { o.URL, o.Mount = "", ConfigMap{"a", "/b\u0085c"} },
		want:   "want a path without quotes and line breaks",
	},
	"its digest": {
		change: func(o *IstioOptions) {
			o.URL, o.SHA256 = "", digest
			o.Mount = ConfigMap{"a", "/b"}
		},
		want: "Istio does not check files",
	},
	"secret of the web": {
		change: func(o *IstioOptions) { o.URL, o.PullSecret = "https://a/b", "s" },
		want:   "a pull secret without an oci:// URL",
	},
	"secret":     {func(o *IstioOptions) { o.PullSecret = "a b" }, `pull secret "a b": want`},
	"port":       {func(o *IstioOptions) { o.Ports = []int{0} }, "port 0: want 1 to 65535"},
	"port twice": {func(o *IstioOptions) { o.Ports = []int{80, 80} }, "port 80 is given twice"},
	"selector, targets": {
		change: func(o *IstioOptions) { o.Selector, o.Targets = map[string]string{"a": "b"}, []string{"Gateway/a"} },
		want:   "one of the two",
	},
	"label": {
		change: func(o *IstioOptions) { o.Selector = map[string]string{"a b": "c"} },
		want:   `selector "a b=c": want a label`,
	},
	"label wildcard": {
		change: func(o *IstioOptions) { o.Selector = map[string]string{"a": "*"} },
		want:   `selector "a=*": want a label`,
	},
	"target": {
		change: func(o *IstioOptions) { o.Targets = []string{"edge"} },
		want:   `target "edge": want KIND/NAME, such as Gateway/edge`,
	},
	"section": {func(o *IstioOptions) { o.Targets = []string{"Gateway/edge/http"} }, "want KIND/NAME, such"},
	"target kind": {
		change: func(o *IstioOptions) { o.Targets = []string{"HTTPRoute/a"} },
		want:   "the kind must be Gateway, GatewayClass, Service or ServiceEntry",
	},
	"gateway class": {
		change: func(o *IstioOptions) { o.Targets = []string{"GatewayClass/istio"} },
		want:   `target "GatewayClass/istio" would limit nothing: of this kind Istio reads only GatewayClass/istio-waypoint`,
	},
	"target name": {
		change: func(o *IstioOptions) { o.Targets = []string{"Gateway/A"} },
		want:   `target "Gateway/A": name "A": want`,
	},
	"target twice": {func(o *IstioOptions) { o.Targets = []string{"Gateway/a", "Gateway/a"} }, "is given twice"},
	"too many": {
		change: func(o *IstioOptions) { o.Targets = make([]string, 17) },
		want:   "17 targets: at most 16 are allowed",
	},
	"policy is no YAML":  {func(o *IstioOptions) { o.Policy = []byte("a: [") }, "read policy: yaml:"},
	"policy is a number": {func(o *IstioOptions) { o.Policy = []byte("1") }, "read policy: not an object"},
}

func TestIstioRefuses(t *testing.T) {
	for name, tc := range refusedByIstio {
		t.Run(name, func(t *testing.T) {
			o := IstioOptions{Fetch: Fetch{URL: "oci://a/b"}, Policy: []byte(commentedPolicy)}
			tc.change(&o)
			_, err := Istio(o)
			require.ErrorContains(t, err, "render ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// refusedByEnvoyGateway are changes to valid options, and what the error says.
var refusedByEnvoyGateway = map[string]struct {
	change func(*EnvoyGatewayOptions)
	want   string
}{
	"name": {func(o *EnvoyGatewayOptions) { o.Name = "a_b" }, `name "a_b": want lower-case`},
	"file": {
		change: func(o *EnvoyGatewayOptions) { o.URL = "file:///a" },
		want:   "want one of oci://REGISTRY/IMAGE, https://HOST/PATH, http://HOST/PATH",
	},
	"no target": {func(o *EnvoyGatewayOptions) { o.Targets = nil }, "no target: want a Gateway"},
	"target": {
		change: func(o *EnvoyGatewayOptions) { o.Targets = []string{"TCPRoute/a"} },
		want:   "the kind must be Gateway, HTTPRoute or GRPCRoute",
	},
	"section": {
		change: func(o *EnvoyGatewayOptions) { o.Targets = []string{"Gateway/a/b/c"} },
		want:   "want KIND/NAME or KIND/NAME/SECTION",
	},
	"its name": {func(o *EnvoyGatewayOptions) { o.Targets = []string{"Gateway/a/"} }, `section "": want`},
	"policy":   {func(o *EnvoyGatewayOptions) { o.Policy = nil }, "read policy: not an object"},
}

func TestEnvoyGatewayRefuses(t *testing.T) {
	for name, tc := range refusedByEnvoyGateway {
		t.Run(name, func(t *testing.T) {
			o := EnvoyGatewayOptions{
				Fetch:   Fetch{URL: "oci://a/b"},
				Policy:  []byte(commentedPolicy),
				Targets: []string{"Gateway/a"},
			}
			tc.change(&o)
			_, err := EnvoyGateway(o)
			require.ErrorContains(t, err, "render EnvoyExtensionPolicy: ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}
