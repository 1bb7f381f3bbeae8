package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const ( // as in a rendered bootstrap
	retryBase      = 500 * time.Millisecond
	retryMax       = 5 * time.Second
	keepaliveEvery = 10 * time.Second
)

// extensionConfigType is the type of the resource and of its discovery.
const extensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// Subscription says which control plane gives the policy, and what it learns of this proxy.
type Subscription struct {
	Addresses []string    // HOST:PORT each, tried in turn
	TLS       *tls.Config // nil = plain text
	Node      string      // id by which the control plane knows this proxy
	Resource  string      // default envoy.ResourceName
	Manage    string      // where the control plane may send management requests, "" = nowhere
}

// Subscribe takes policies from a control plane by Delta ECDS until ctx ends. It answers a
// policy that the filter refuses with a NACK. The current policy stays in force then, and also
// while the control plane is unreachable.
func (p *Proxy) Subscribe(ctx context.Context, s Subscription) error {
	if s.Node == "" {
		return errors.New("subscribe: no node id: the control plane tells proxies apart by it")
	}
	s.Resource = cmp.Or(s.Resource, envoy.ResourceName)
	security := insecure.NewCredentials()
	if s.TLS != nil {
		security = credentials.NewTLS(s.TLS)
	}
	connection, err := Dial(s.Addresses,
		grpc.WithTransportCredentials(security),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: retryMax},
			MinConnectTimeout: retryMax,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveEvery}),
	)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	defer connection.Close()
	client := extensionv3.NewExtensionConfigDiscoveryServiceClient(connection)
	(&subscriber{Subscription: s, proxy: p, client: client}).run(ctx)
	return nil
}

// Dial returns a connection to the first of the addresses, HOST:PORT each, that accepts it.
// It tries them in turn, and begins with the first again after each loss.
func Dial(addresses []string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address")
	}
	list := make([]resolver.Address, len(addresses))
	for i, a := range addresses {
		list[i] = resolver.Address{Addr: a, ServerName: a} // the certificate has to be for this name
	}
	several := manual.NewBuilderWithScheme("several")
	several.InitialState(resolver.State{Addresses: list})
	return grpc.NewClient("several:///"+addresses[0], append(options, grpc.WithResolvers(several))...)
}

// subscriber keeps a subscription from one stream to the next.
type subscriber struct {
	Subscription
	proxy  *Proxy
	client extensionv3.ExtensionConfigDiscoveryServiceClient

	version string // of the resource in force, empty for none
	failed  int    // streams in a row that brought no response
	problem string // the last one logged: unreachable, or why the control plane rejects this proxy; empty for none
}

// unreachable is the problem of a control plane that does not answer.
const unreachable = "unreachable"

// run opens one stream after another until ctx ends.
func (c *subscriber) run(ctx context.Context) {
	for {
		err := c.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		c.logProblem(err)
		wait := min(retryBase<<min(c.failed, 8), retryMax)
		c.failed++
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait/2)): //nolint:gosec // jitter, no secret
		}
	}
}

// subscribe opens a stream, and takes what comes until the stream ends.
func (c *subscriber) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.client.DeltaExtensionConfigs(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(c.subscription())
	if err != nil && !errors.Is(err, io.EOF) { // at io.EOF, Recv returns the reason
		return err
	}
	c.logSubscribed()
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		c.failed = 0
		c.problem = ""
		err = stream.Send(c.take(response))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// logSubscribed logs that a stream is open. A control plane that rejected this proxy may do so
// again: only a response shows that it no longer does.
func (c *subscriber) logSubscribed() {
	if c.problem != "" && c.problem != unreachable {
		return
	}
	c.problem = ""
	c.proxy.log.Info("subscribed", "xds", strings.Join(c.Addresses, ","), "node", c.Node, "resource", c.Resource)
}

// logProblem logs why a stream has ended, unless that is the last problem logged.
func (c *subscriber) logProblem(err error) {
	end := status.Convert(err)
	reason := fmt.Sprintf("%.1000s", end.Message())
	log := c.proxy.log.With("xds", strings.Join(c.Addresses, ","), "node", c.Node, "reason", reason)
	switch end.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
		if c.problem != reason {
			log.Error("control plane rejected this proxy; keeping the current policy")
		}
		c.problem = reason
	default:
		if c.problem != unreachable {
			log.Warn("control plane unreachable; keeping the current policy")
		}
		c.problem = unreachable
	}
}

// subscription returns the first request of a stream. Only this one names the proxy and the
// version that it has.
func (c *subscriber) subscription() *discoveryv3.DeltaDiscoveryRequest {
	about := map[string]*structpb.Value{"wasm": structpb.NewStringValue(c.proxy.options.WasmName)}
	if c.Manage != "" {
		about["manage"] = structpb.NewStringValue(c.Manage)
	}
	if c.proxy.options.Cluster != nil {
		about["quota_cluster"] = structpb.NewStringValue("*") // any name, see Options.Cluster
	}
	r := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{
			Id:            c.Node,
			Cluster:       "sluice",
			UserAgentName: "sluice",
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
				"sluice": structpb.NewStructValue(&structpb.Struct{Fields: about}),
			}},
		},
		TypeUrl:                extensionConfigType,
		ResourceNamesSubscribe: []string{c.Resource},
	}
	if c.version != "" {
		r.InitialResourceVersions = map[string]string{c.Resource: c.version}
	}
	return r
}

// take enforces the policy in a response, and returns the ACK or NACK.
func (c *subscriber) take(response *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionConfigType, ResponseNonce: response.GetNonce()}
	for _, resource := range response.GetResources() {
		if resource.GetName() != c.Resource {
			continue
		}
		log := c.proxy.log.With("nonce", response.GetNonce(), "version", resource.GetVersion())
		err := c.proxy.enforce(resource)
		if err != nil {
			log.Error("policy refused; keeping the current one", "error", err)
			r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: err.Error()}
			continue
		}
		c.version = resource.GetVersion()
		log.Info("policy in force")
	}
	return r
}

// enforce adopts the policy in a resource, with the filter that it names. It reads what
// sluice serve writes, but for vm_id, root_id and the runtime: this proxy has one filter and
// one store.
func (p *Proxy) enforce(resource *discoveryv3.Resource) error {
	var extension corev3.TypedExtensionConfig
	var filter wasmfilterv3.Wasm
	var policy wrapperspb.StringValue
	if err := resource.GetResource().UnmarshalTo(&extension); err != nil {
		return fmt.Errorf("read extension config: %w", err)
	}
	if err := extension.GetTypedConfig().UnmarshalTo(&filter); err != nil {
		return fmt.Errorf("read filter config: %w", err)
	}
	config := filter.GetConfig()
	if err := config.GetConfiguration().UnmarshalTo(&policy); err != nil {
		return fmt.Errorf("read plugin configuration: %w", err)
	}
	wasm, err := p.readFilter(config.GetVmConfig().GetCode().GetLocal().GetFilename())
	if err != nil {
		return err
	}
	return p.adopt(wasm, []byte(policy.GetValue()))
}

// readFilter reads the file of a filter, each time anew, as Envoy does.
func (p *Proxy) readFilter(file string) ([]byte, error) {
	if file == Embedded {
		return p.options.Wasm, nil
	}
	wasm, err := p.options.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the filter: %w", err)
	}
	return wasm, nil
}
