package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const somePolicy = `{"version":1,"rules":[{"name":"per-user","key":[{"header":"x-user-id"}],"limits":["10/1m"]}]}`

// bootstraps are the shapes a bootstrap takes, by golden file.
var bootstraps = map[string]BootstrapOptions{
	"static": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", Policy: []byte(somePolicy)},
		Listen: "127.0.0.1:10000", Upstream: "127.0.0.1:8080", Admin: "127.0.0.1:9901",
	},
	"xds": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm"},
		Listen: ":10000", Upstream: "api.example.com:8080", Admin: "[::1]:9901",
		XDS: []string{"127.0.0.1:18000"}, Node: "edge-1",
	},
	"xds-open": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm"}, OpenWithoutPolicy: true,
		Listen: ":10000", Upstream: "api.example.com:8080", Admin: "[::1]:9901",
		XDS: []string{"127.0.0.1:18000"}, Node: "edge-1",
	},
	"quota": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", Policy: []byte(somePolicy)},
		Listen: "127.0.0.1:10000", Upstream: "127.0.0.1:8080", Admin: "127.0.0.1:9901",
		Quota:        []string{"quota-1.example.com:18001", "quota-2.example.com:18001"},
		QuotaTLS:     &ClientTLS{CA: "/etc/sluice/quota.pem"},
		QuotaCluster: "shop_quota", QuotaTimeout: 30 * time.Millisecond,
	},
	"xds-manage-tls": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", VMID: "shop", Policy: []byte(somePolicy)},
		Listen: "127.0.0.1:10000", Upstream: "[::1]:8080", Admin: "127.0.0.1:9901",
		XDS: []string{"control.example.com:18000"}, Node: "edge: 1", Manage: "10.0.0.1:9902",
		ManageTLS: &ServerTLS{Cert: "/etc/sluice/manage.pem", Key: "/etc/sluice/manage.key"},
		XDSTLS:    &ClientTLS{CA: "/etc/sluice/ca.pem", Cert: "/etc/sluice/edge, 1.pem", Key: "/etc/sluice/edge.key"},
	},
	"several": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", Envoy: NewestVersion},
		Listen: ":10000", Upstream: "api.example.com:8080", Admin: "[::1]:9901",
		XDS:  []string{"control-1.example.com:18000", "control-2.example.com:18000", "10.0.0.3:18000"},
		Node: "edge-1", XDSTLS: &ClientTLS{CA: "/etc/sluice/ca.pem"},
		AccessLog: "/dev/stdout", Headers: []string{"x-user-id", "x-api-key"},
	},
}

func TestBootstrapIsGolden(t *testing.T) {
	for name, o := range bootstraps {
		t.Run(name, func(t *testing.T) {
			got, err := Bootstrap(o)
			require.NoError(t, err)
			requireGolden(t, filepath.Join("bootstrap", name+".yaml"), got)
		})
	}
}

// requireGolden compares with a file of testdata.
func requireGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o750))
		require.NoError(t, os.WriteFile(golden, got, 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "if the change is meant: go test ./envoy -update")
}

// FilterEntry writes parts of the bootstrap, ready to be pasted.
func TestFilterEntry(t *testing.T) {
	for name, o := range bootstraps {
		t.Run(name, func(t *testing.T) {
			o.AccessLog = "/dev/stdout"
			o.Listen, o.Upstream = "", ""
			o.Admin = ""
			got, err := FilterEntry(o)
			require.NoError(t, err)
			requireGolden(t, filepath.Join("filter", name+".yaml"), got)
		})
	}
}

func TestLoggedHeaders(t *testing.T) {
	headers := []string{"x-user-id", "Authorization", "x-api-key", "a)%b", "x-tenant"}
	v := bootstrapView{BootstrapOptions: BootstrapOptions{Headers: headers}}
	require.Equal(t, []string{"x-user-id", "x-tenant"}, v.LoggedHeaders())
}

// Envoy 1.36 and 1.37 start V8 before their workers: by the filter's first configuration, or by a module
// that does nothing.
func TestV8StartsBeforeTheWorkersOfOldEnvoys(t *testing.T) {
	closed := BootstrapOptions{XDS: []string{"127.0.0.1:9902"}}
	for name, tc := range map[string]struct {
		version string
		change  func(o *BootstrapOptions)
		want    bool
	}{
		"any version":       {"", func(*BootstrapOptions) {}, true},
		"1.36":              {"1.36.4", func(*BootstrapOptions) {}, true},
		"1.37":              {"1.37", func(*BootstrapOptions) {}, true},
		"1.39":              {"1.39", func(*BootstrapOptions) {}, false},
		"1.40":              {"1.40.0", func(*BootstrapOptions) {}, false},
		"a first policy":    {"1.36", func(o *BootstrapOptions) { o.Plugin.Policy = []byte(EmptyPolicy) }, false},
		"open without one":  {"1.36", func(o *BootstrapOptions) { o.OpenWithoutPolicy = true }, false},
		"no control plane":  {"1.36", func(o *BootstrapOptions) { o.XDS = nil }, false},
		"another runtime":   {"1.36", func(o *BootstrapOptions) { o.Plugin.Runtime = "envoy.wasm.runtime.wamr" }, false},
		"the runtime named": {"1.36", func(o *BootstrapOptions) { o.Plugin.Runtime = DefaultRuntime }, true},
	} {
		o := closed
		o.Plugin.Envoy = tc.version
		tc.change(&o)
		require.Equal(t, tc.want, bootstrapView{BootstrapOptions: o}.MustStartV8(), name)
	}
}

func TestTakesVMCapabilities(t *testing.T) {
	for version, want := range map[string]bool{
		"":        false,
		"1.36.4":  false,
		"1.39.9":  false,
		"1.40":    true,
		"v1.40.0": true,
		"1.41.0":  true,
		"2.0.0":   true,
		"0.0.0":   false,
		"x":       false,
	} {
		require.Equal(t, want, TakesVMCapabilities(version), version)
	}
}

// refusedBootstraps are changes to the options of a bootstrap with xDS, and what the error says.
var refusedBootstraps = map[string]struct {
	change func(*BootstrapOptions)
	want   string
}{
	"no listen address": {func(o *BootstrapOptions) { o.Listen = "" }, `listen address "": has no port`},
	"listening on a name": {func(o *BootstrapOptions) { o.Manage = "manage:1" },
		`manage address "manage:1": Envoy listens on an IP`},
	"manage where clients are": {func(o *BootstrapOptions) { o.Listen, o.Manage = ":9902", "127.0.0.1:9902" },
		"listen address and manage address both take port 9902 of 127.0.0.1: give each a port of its own"},
	"admin where clients are": {
		change: func(o *BootstrapOptions) { o.Listen, o.Admin = "[::1]:80", "[0:0::1]:80" },
		want:   "listen address and admin address",
	},
	"admin where manage is": {
		change: func(o *BootstrapOptions) { o.Admin, o.Manage = "localhost:1", "127.0.0.1:1" },
		want:   "admin address and manage address",
	},
	"upstream URL": {
		change: func(o *BootstrapOptions) { o.Upstream = "http://a" },
		want:   `upstream address "http://a": is a URL`,
	},
	"admin port": {
		change: func(o *BootstrapOptions) { o.Admin = "[::1]:x" },
		want:   `admin address "[::1]:x": the port is not a number`,
	},
	"xds port": {
		change: func(o *BootstrapOptions) { o.XDS = []string{"a:0"} },
		want:   `xds address "a:0": want a host and a port`,
	},
	"xds twice": {
		change: func(o *BootstrapOptions) { o.XDS = []string{"a:1", "a:1"} },
		want:   `xds address "a:1" is given twice`,
	},
	"Envoy": {
		change: func(o *BootstrapOptions) { o.Plugin.Envoy = "newest" },
		want:   `version "newest" of Envoy: want one such as ` + NewestVersion,
	},
	"no node": {func(o *BootstrapOptions) { o.Node = "" }, "no node id"},
	"no wasm": {func(o *BootstrapOptions) { o.Plugin.Wasm = "" }, "no path of the filter's wasm binary"},
	"policy no JSON": {
		change: func(o *BootstrapOptions) { o.Plugin.Policy = []byte("version: 1") },
		want:   "read policy: invalid character",
	},
	"TLS without xds": {func(o *BootstrapOptions) { o.XDS, o.XDSTLS = nil, &ClientTLS{CA: "a"} },
		"TLS for the control plane, but no control plane"},
	"TLS without CA": {func(o *BootstrapOptions) { o.XDSTLS = &ClientTLS{} }, "needs the certificate authority"},
	"certificate without a listener": {func(o *BootstrapOptions) { o.ManageTLS = &ServerTLS{"a", "b"} },
		"a certificate for management requests, but no listener for them"},
	"half a certificate": {func(o *BootstrapOptions) { o.Manage, o.ManageTLS = "[::1]:1", &ServerTLS{Cert: "a"} },
		"certificate and its key go together"},
	"half a client certificate": {func(o *BootstrapOptions) { o.XDSTLS = &ClientTLS{CA: "a", Key: "b"} },
		"a client certificate and its key go together"},
}

func TestBootstrapRefuses(t *testing.T) {
	for name, tc := range refusedBootstraps {
		t.Run(name, func(t *testing.T) {
			o := bootstraps["xds"]
			tc.change(&o)
			_, err := Bootstrap(o)
			require.ErrorContains(t, err, "render bootstrap: ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestBootstrapOfLargePolicy(t *testing.T) {
	o := bootstraps["static"]
	long := `{"version":1,"rules":[` + strings.Repeat(" ", longestReadable) + `]}`
	o.Plugin.Policy = []byte(long)
	got, err := Bootstrap(o)
	require.NoError(t, err)
	require.Contains(t, string(got), long, "unchanged, on one line")
}

func TestScalarQuotesWhatYAMLMisreads(t *testing.T) {
	for _, text := range []string{
		"", "a", "edge-1", "/a/b.wasm", "1", "1.40", "true", "no", "null", "~", "a: b", "a, b", "{a}", "- a", "#", "::1",
		"127.0.0.1", "é", "a\nb", `"`, `'`, `\`, "<&>", "2024-01-01", " a ", "*a", "&a", "!a", "%a", "0x1f",
	} {
		written, err := scalar(text)
		require.NoError(t, err)
		var flow map[string]string
		require.NoError(t, yaml.Unmarshal([]byte("{k: "+written+"}"), &flow), written)
		require.Equal(t, text, flow["k"], written)
	}
}

func TestAddress(t *testing.T) {
	for _, tc := range []struct {
		text         string
		listen, dial address // zero = refused
		reason       string
	}{
		{text: "127.0.0.1:8080", listen: address{"127.0.0.1", 8080}, dial: address{"127.0.0.1", 8080}},
		{text: "[::1]:8080", listen: address{"::1", 8080}, dial: address{"::1", 8080}},
		{text: "localhost:80", listen: address{"127.0.0.1", 80}, dial: address{"localhost", 80}},
		{text: "api.example.com:80", dial: address{"api.example.com", 80}, reason: "not on a name"},
		{text: ":8080", listen: address{"0.0.0.0", 8080}, reason: "want a host and a port"},
		{text: "127.0.0.1:0", listen: address{"127.0.0.1", 0}, reason: "want a host and a port"},
		{text: "127.0.0.1", reason: "has no port"},
		{text: "127.0.0.1:http", reason: "the port is not a number"},
		{text: "127.0.0.1:65536", reason: "the port is above 65535"},
		{text: "::1:8080", reason: "between brackets"},
		{text: "[127.0.0.1]:8080", reason: "no IPv6 address between the brackets"},
		{text: "http://127.0.0.1:8080", reason: "is a URL"},
		{text: "a b:80", reason: "has a blank in it"},
		{text: "a\nadmin:80", reason: "has a blank in it"},
		{text: "", reason: "has no port"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			check := func(want, got address, err error) {
				if want == (address{}) {
					require.ErrorContains(t, err, tc.reason)
				} else {
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
			}
			got, err := listenAddress(tc.text)
			check(tc.listen, got, err)
			got, err = dialAddress(tc.text)
			check(tc.dial, got, err)
		})
	}
}
