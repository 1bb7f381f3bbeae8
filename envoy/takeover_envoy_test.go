package envoy_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
)

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

// TestFirstRequestMeetsServedPolicy: with a control plane up, no request slips
// through under the baked policy while Envoy starts.
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
