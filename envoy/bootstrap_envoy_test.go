package envoy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// probe is the path of a filter that answers every request with its policy.
var probe string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "probe-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		probe = filepath.Join(dir, "probe.wasm")
		if err := os.WriteFile(probe, probeModule(probeName), 0o600); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// unusedAddress is one that nobody listens on.
func unusedAddress(t *testing.T) string {
	t.Helper()
	free, err := ports.Free(1)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", free[0])
}

// get asks on a connection of its own, so on any worker, for a body.
func get(t *testing.T, ctx context.Context, url string) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
	return string(body)
}

// patience is for machines with much else to do.
const patience = 3 * time.Minute

// eachEnvoy runs a test on every Envoy the tests have to pass on.
func eachEnvoy(t *testing.T, test func(t *testing.T, ctx context.Context, binary string)) {
	t.Helper()
	binaries, err := proc.All()
	require.NoError(t, err)
	for _, binary := range binaries {
		version, err := proc.Version(t.Context(), binary)
		require.NoError(t, err)
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			test(t, ctx, binary)
		})
	}
}

func start(t *testing.T, ctx context.Context, binary string, o envoy.BootstrapOptions) *proc.Process {
	t.Helper()
	bootstrap, err := envoy.Bootstrap(o)
	require.NoError(t, err)
	return startBootstrap(t, ctx, binary, bootstrap)
}

func startBootstrap(t *testing.T, ctx context.Context, binary string, bootstrap []byte) *proc.Process {
	t.Helper()
	p, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: bootstrap, Concurrency: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	require.NoError(t, p.WaitReady(ctx))
	return p
}

func listener(t *testing.T, ctx context.Context, p *proc.Process, name string) string {
	t.Helper()
	address, err := p.Listener(ctx, name)
	require.NoError(t, err)
	return "http://" + address
}

// TestEnvoyAcceptsBootstrap has Envoy judge every shape with every option.
func TestEnvoyAcceptsBootstrap(t *testing.T) {
	wasm := filepath.Join(t.TempDir(), "smallest.wasm")
	require.NoError(t, os.WriteFile(wasm, []byte(buildtest.Smallest), 0o600))
	plugin := envoy.Plugin{Wasm: wasm, Policy: []byte(`{"version":1}`)}
	certificate, key := buildtest.Certificate(t)
	tls := &envoy.ClientTLS{CA: certificate}
	mutual := &envoy.ClientTLS{CA: certificate, Cert: certificate, Key: key}
	base := envoy.BootstrapOptions{Plugin: plugin, Listen: ":0", Upstream: "localhost:8080", Admin: "[::1]:0", Node: "n"}
	shapes := map[string]envoy.BootstrapOptions{"static": base}
	base.Manage = "127.0.0.1:0"
	shapes["manage"] = base
	base.ManageTLS = &envoy.ServerTLS{Cert: certificate, Key: key}
	shapes["manage with TLS"] = base
	base.XDS, base.Upstream = []string{"127.0.0.1:18000"}, "[::1]:8080"
	shapes["xds"] = base
	base.XDSTLS = tls
	shapes["tls"] = base
	base.XDSTLS, base.XDS = mutual, []string{"localhost:18000"}
	shapes["mutual tls"] = base
	base.XDS, base.AccessLog, base.Headers = []string{"localhost:18000", "127.0.0.1:18000"}, "/dev/null", []string{"x-user-id"}
	shapes["several control planes"] = base
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		version, err := proc.Version(ctx, binary)
		require.NoError(t, err)
		for name, o := range shapes {
			t.Run(name, func(t *testing.T) {
				o.Plugin.Envoy = version
				bootstrap, err := envoy.Bootstrap(o)
				require.NoError(t, err)
				require.NoError(t, proc.Validate(ctx, binary, bootstrap))
			})
		}
	})
}

// TestMetricLabels: rule, domain and override become labels, dots and all, by the tags
// of a rendered bootstrap and by those that Istio's extraStatTags makes.
func TestMetricLabels(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		for name, want := range map[string]string{
			probeName: `{rule="per.user-1"}`,
			"domain=.=a.shop;.;rule=.=per.user-1;.;rate_limit_allowed_total":                     `{domain="a.shop",rule="per.user-1"}`,
			"domain=.=a.shop;.;rule=.=per.user-1;.;override=.=gold.2;.;rate_limit_allowed_total": `{domain="a.shop",override="gold.2",rule="per.user-1"}`,
			"rule=.=per.user-1;.;override=.=gold.2;.;rate_limit_allowed_total":                   `{override="gold.2",rule="per.user-1"}`,
		} {
			module := filepath.Join(t.TempDir(), "probe.wasm")
			require.NoError(t, os.WriteFile(module, probeModule(name), 0o600))
			bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
				Plugin: envoy.Plugin{Wasm: module}, Listen: "127.0.0.1:0", Upstream: unusedAddress(t), Admin: "127.0.0.1:0",
			})
			require.NoError(t, err)
			istios := bootstrap
			for _, tag := range envoy.StatsTags() {
				require.Contains(t, string(bootstrap), tag.Regex)
				istios = bytes.Replace(istios, []byte(tag.Regex), []byte(`(`+tag.Name+`=\.=(.*?);\.;)`), 1)
			}
			for _, text := range [][]byte{bootstrap, istios} {
				p := startBootstrap(t, ctx, binary, text)
				require.JSONEq(t, envoy.EmptyPolicy, get(t, ctx, listener(t, ctx, p, envoy.ListenerName)))
				prometheus, err := p.Prometheus(ctx)
				require.NoError(t, err)
				line := regexp.MustCompile(`\n(rate_limit_allowed_total\{.*\}) 1\n`).FindStringSubmatch(prometheus)
				require.Len(t, line, 2, name)
				require.Equal(t, sortedLabels(want), sortedLabels(strings.TrimPrefix(line[1], "rate_limit_allowed_total")))
				require.NoError(t, p.Kill())
			}
		}
	})
}

func sortedLabels(text string) []string {
	labels := strings.Split(strings.Trim(text, "{}"), ",")
	slices.Sort(labels)
	return labels
}
