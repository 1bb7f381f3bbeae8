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
		XDS: "127.0.0.1:18000", Node: "edge-1",
	},
	"quota": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", Policy: []byte(somePolicy)},
		Listen: "127.0.0.1:10000", Upstream: "127.0.0.1:8080", Admin: "127.0.0.1:9901",
		Quota: "quota.example.com:18001", QuotaTLS: &ClientTLS{CA: "/etc/sluice/quota.pem"},
		QuotaCluster: "shop_quota", QuotaTimeout: 30 * time.Millisecond,
	},
	"xds-manage-tls": {
		Plugin: Plugin{Wasm: "/usr/share/sluice/sluice.wasm", VMID: "shop", Policy: []byte(somePolicy)},
		Listen: "127.0.0.1:10000", Upstream: "[::1]:8080", Admin: "127.0.0.1:9901",
		XDS: "control.example.com:18000", Node: "edge: 1", Cluster: "edge", Manage: "10.0.0.1:9902",
		ManageTLS: &ServerTLS{Cert: "/etc/sluice/manage.pem", Key: "/etc/sluice/manage.key"},
		XDSTLS:    &ClientTLS{CA: "/etc/sluice/ca.pem", Cert: "/etc/sluice/edge, 1.pem", Key: "/etc/sluice/edge.key"},
	},
}

func TestBootstrap(t *testing.T) {
	for name, o := range bootstraps {
		t.Run(name, func(t *testing.T) {
			got, err := Bootstrap(o)
			require.NoError(t, err)
			golden := filepath.Join("testdata", "bootstrap", name+".yaml")
			if *update {
				require.NoError(t, os.WriteFile(golden, got, 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "if the change is meant: go test ./envoy -update")

			// Whatever the template did, it is YAML and the values arrived.
			var document struct {
				Node struct {
					ID       string
					Metadata map[string]map[string]string
				}
			}
			require.NoError(t, yaml.Unmarshal(got, &document))
			require.Equal(t, o.Node, document.Node.ID)
			require.Equal(t, o.Plugin.Wasm, document.Node.Metadata["sluice"]["wasm"])
			announced, port := o.Manage, ""
			if o.Manage != "" {
				port = "9902"
			}
			if o.ManageTLS != nil {
				announced = "https://" + o.Manage
			}
			require.Equal(t, announced, document.Node.Metadata["sluice"]["manage"])
			require.Equal(t, port, document.Node.Metadata["sluice"]["manage_port"])
			require.Equal(t, o.Plugin.VMID, document.Node.Metadata["sluice"]["vm_id"])
		})
	}
}

func TestBootstrapRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*BootstrapOptions)
		want   string
	}{
		"no listen address": {func(o *BootstrapOptions) { o.Listen = "" }, `listen address "": has no port`},
		"listening on a name": {func(o *BootstrapOptions) { o.Manage = "manage:1" },
			`manage address "manage:1": Envoy listens on an IP`},
		"upstream URL":   {func(o *BootstrapOptions) { o.Upstream = "http://a" }, `upstream address "http://a": is a URL`},
		"admin port":     {func(o *BootstrapOptions) { o.Admin = "[::1]:x" }, `admin address "[::1]:x": the port is not a number`},
		"xds port":       {func(o *BootstrapOptions) { o.XDS = "a:0" }, `xds address "a:0": want a host and a port`},
		"no node":        {func(o *BootstrapOptions) { o.Node = "" }, "no node id"},
		"no wasm":        {func(o *BootstrapOptions) { o.Plugin.Wasm = "" }, "no path of the filter's wasm binary"},
		"policy no JSON": {func(o *BootstrapOptions) { o.Plugin.Policy = []byte("version: 1") }, "read policy: invalid character"},
		"TLS without xds": {func(o *BootstrapOptions) { o.XDS, o.XDSTLS = "", &ClientTLS{CA: "a"} },
			"TLS for the control plane, but no control plane"},
		"TLS without CA": {func(o *BootstrapOptions) { o.XDSTLS = &ClientTLS{} }, "needs the certificate authority"},
		"certificate without a listener": {func(o *BootstrapOptions) { o.ManageTLS = &ServerTLS{"a", "b"} },
			"a certificate for management requests, but no listener for them"},
		"half a certificate": {func(o *BootstrapOptions) { o.Manage, o.ManageTLS = "[::1]:1", &ServerTLS{Cert: "a"} },
			"certificate and its key go together"},
		"half a client certificate": {func(o *BootstrapOptions) { o.XDSTLS = &ClientTLS{CA: "a", Key: "b"} },
			"a client certificate and its key go together"},
	} {
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

func TestScalar(t *testing.T) {
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
