package envoy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

const (
	// denying refuses all requests with 429. Without a filter, or with a policy that limits
	// nothing, an upstream that is not there is 503.
	denying = `{"version":1,"rules":[{"name":"none","limits":["0/1h"]}]}`
	// labeled has a metric of a rule and one of an override.
	labeled = `"rules":[{"name":"per.user-1","key":["client_ip"],"limits":["9/1h"],
		"overrides":[{"name":"gold.2","key":["127.0.0.1"],"limits":["99/1h"]}]}]}`
)

// unusedAddress is one that nobody listens on.
func unusedAddress(t *testing.T) string {
	t.Helper()
	free, err := ports.Free(1)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", free[0])
}

// ask asks on a connection of its own, so on any worker, for a status.
func ask(t *testing.T, ctx context.Context, url string) int {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
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

// TestEnvoyAcceptsBootstrap has Envoy judge every shape that a bootstrap takes.
func TestEnvoyAcceptsBootstrap(t *testing.T) {
	wasm := filepath.Join(t.TempDir(), "smallest.wasm")
	require.NoError(t, os.WriteFile(wasm, []byte(envoy.SmallestModule), 0o600))
	certificate, key := certtest.Files(t)
	here := strings.NewReplacer(
		"/usr/share/sluice/sluice.wasm", wasm,
		"/etc/sluice/manage.key", key,
		"/etc/sluice/edge.key", key,
		"/etc/sluice/manage.pem", certificate,
		"/etc/sluice/ca.pem", certificate,
		"/etc/sluice/edge, 1.pem", certificate,
		"/etc/sluice/quota.pem", certificate,
	)
	files, err := filepath.Glob("testdata/bootstrap/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		version, err := proc.Version(ctx, binary)
		require.NoError(t, err)
		for _, file := range files {
			bootstrap, err := os.ReadFile(file)
			require.NoError(t, err)
			if envoy.TakesVMCapabilities(version) || !strings.Contains(string(bootstrap), "\n# For Envoy 1.40 and later") {
				require.NoError(t, proc.Validate(ctx, binary, []byte(here.Replace(string(bootstrap)))), file)
			}
		}
	})
}

// Rule, domain and override become labels, with their dots, by the tags of a rendered bootstrap and
// by those that Istio's extraStatTags makes.
func TestMetricLabels(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		for head, domain := range map[string]string{
			`{"version":1,`:                   "",
			`{"version":1,"domain":"a.shop",`: `domain="a.shop",`,
		} {
			bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
				Plugin: envoy.Plugin{Wasm: buildtest.Filter(t), Policy: []byte(head + labeled)},
				Listen: "127.0.0.1:0", Upstream: unusedAddress(t), Admin: "127.0.0.1:0",
			})
			require.NoError(t, err)
			istios := bootstrap
			for _, tag := range envoy.StatsTags() {
				require.Contains(t, string(bootstrap), tag.Regex)
				istios = bytes.Replace(istios, []byte(tag.Regex), []byte(`(`+tag.Name+`=\.=(.*?);\.;)`), 1)
			}
			for _, text := range [][]byte{bootstrap, istios} {
				p := startBootstrap(t, ctx, binary, text)
				require.Equal(t, http.StatusServiceUnavailable, ask(t, ctx, listener(t, ctx, p, envoy.ListenerName)))
				for _, want := range []string{
					`rate_limit_allowed_total{` + domain + `rule="per.user-1"} 1`,
					`rate_limit_override_allowed_total{` + domain + `override="gold.2",rule="per.user-1"} 1`,
				} {
					require.Eventually(t, func() bool {
						prometheus, err := p.Prometheus(ctx)
						return err == nil && slices.ContainsFunc(strings.Split(prometheus, "\n"),
							func(line string) bool { return sorted(line) == want })
					}, patience, 50*time.Millisecond, want)
				}
				require.NoError(t, p.Kill())
			}
		}
	})
}

// sorted is a sample with its labels in order.
func sorted(line string) string {
	name, rest, _ := strings.Cut(line, "{")
	text, value, _ := strings.Cut(rest, "}")
	labels := strings.Split(text, ",")
	slices.Sort(labels)
	return name + "{" + strings.Join(labels, ",") + "}" + value
}

// Envoy obeys the list. With the default the filter gets the request; with one callback less it
// does not, and the upstream gets it. No version warns of the field that has its list.
func TestCapabilitiesRestrict(t *testing.T) {
	without := slices.DeleteFunc(envoy.DefaultCapabilities(),
		func(name string) bool { return name == "proxy_on_request_headers" })
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		version, err := proc.Version(ctx, binary)
		require.NoError(t, err)
		for _, tc := range []struct {
			name         string
			capabilities []string
			want         int
		}{
			{"default", nil, http.StatusTooManyRequests},
			{"one less", without, http.StatusServiceUnavailable}, // from the upstream that is not there
		} {
			p := start(t, ctx, binary, envoy.BootstrapOptions{
				Plugin: envoy.Plugin{
					Wasm:         buildtest.Filter(t),
					Policy:       []byte(denying),
					Capabilities: tc.capabilities,
					Envoy:        version,
				},
				Listen: "127.0.0.1:0", Upstream: unusedAddress(t), Admin: "127.0.0.1:0",
			})
			require.Equal(t, tc.want, ask(t, ctx, listener(t, ctx, p, envoy.ListenerName)), tc.name)
			require.NotContains(t, strings.ToLower(p.Log()), "deprecated", tc.name)
			require.NoError(t, p.Kill())
		}
	})
}

// TestClientsDoNotLockOperatorsOut holds every connection that clients may have:
// the admin interface and the management listener still answer.
func TestClientsDoNotLockOperatorsOut(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
			Plugin:   envoy.Plugin{Wasm: buildtest.Filter(t)},
			Listen:   "127.0.0.1:0",
			Upstream: unusedAddress(t),
			Admin:    "127.0.0.1:0",
			Manage:   "127.0.0.1:0",
		})
		require.NoError(t, err)
		require.Contains(t, string(bootstrap), "connections: 50000\n")
		p := startBootstrap(t, ctx, binary,
			bytes.Replace(bootstrap, []byte("connections: 50000\n"), []byte("connections: 3\n"), 1))
		ingress, manage := listener(t, ctx, p, envoy.ListenerName), listener(t, ctx, p, "manage")
		dial := func() net.Conn {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(ingress, "http://"))
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			_, err = c.Write([]byte("GET / HTTP/1.1\r\nhost: a\r\n\r\n"))
			require.NoError(t, err)
			return c
		}
		answered := func(c net.Conn) bool {
			n, _ := c.Read(make([]byte, 1))
			return n == 1
		}
		for range 3 {
			require.True(t, answered(dial()))
		}
		require.False(t, answered(dial()), "there are three already")
		require.Equal(t, http.StatusNotFound, ask(t, ctx, manage))
		require.Equal(t, http.StatusOK, ask(t, ctx, p.Admin()+"/stats/prometheus")) // by a new connection
	})
}

// onePlugin is a control plane that answers every stream with one resource, after a while.
type onePlugin struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	resource *discoveryv3.Resource
}

func (s onePlugin) DeltaExtensionConfigs(
	stream extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer,
) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	time.Sleep(time.Second) // an Envoy that does not wait would serve by now
	if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: request.GetTypeUrl(), Nonce: "1", Resources: []*discoveryv3.Resource{s.resource},
	}); err != nil {
		return err
	}
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// serve is a control plane on an address that knows one plugin. It ends with the test.
func serve(t *testing.T, address string, plugin envoy.Plugin) {
	t.Helper()
	config, err := plugin.ExtensionConfig()
	require.NoError(t, err)
	packed, err := anypb.New(config)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	grpcServer := grpc.NewServer()
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(grpcServer, onePlugin{
		resource: &discoveryv3.Resource{Name: config.GetName(), Version: "1", Resource: packed},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = grpcServer.Serve(listener) // ends with Stop
	}()
	t.Cleanup(func() {
		grpcServer.Stop()
		<-done
	})
}

// If the control plane is up, the first request already meets its policy, not the one in the
// bootstrap.
func TestFirstRequestMeetsServedPolicy(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		xds := unusedAddress(t)
		serve(t, xds, envoy.Plugin{Wasm: buildtest.Filter(t), Policy: []byte(denying)})
		p := start(t, ctx, binary, envoy.BootstrapOptions{
			Plugin:   envoy.Plugin{Wasm: buildtest.Filter(t)},
			Listen:   "127.0.0.1:0",
			Upstream: unusedAddress(t),
			Admin:    "127.0.0.1:0",
			XDS:      []string{xds}, Node: "n",
		})
		require.Equal(t, http.StatusTooManyRequests, ask(t, ctx, listener(t, ctx, p, envoy.ListenerName)))
	})
}
