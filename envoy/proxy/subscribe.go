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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// As in a rendered bootstrap.
const (
	retryBase      = 500 * time.Millisecond
	retryMax       = 5 * time.Second
	keepaliveEvery = 10 * time.Second
)

// extensionConfigType is the type of the resource and of its discovery.
const extensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// Subscription says which control plane gives the policy, and to whom.
type Subscription struct {
	Addresses []string    // HOST:PORT each, tried in turn
	TLS       *tls.Config // nil = plain text
	Node      string      // id by which the control plane knows this proxy
	Resource  string      // default envoy.ResourceName
	Manage    string      // where the control plane may send management requests, "" = nowhere
}

// Subscribe takes policies from a control plane by Delta ECDS until ctx ends.
// What it refuses it answers with a NACK, and the policy before stays; so does
// the last one while the control plane is away.
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
	c := &subscriber{
		Subscription: s, proxy: p,
		client: extensionv3.NewExtensionConfigDiscoveryServiceClient(connection),
	}
	c.run(ctx)
	return nil
}

// subscriber is what Subscribe keeps from one stream to the next.
type subscriber struct {
	Subscription
	proxy  *Proxy
	client extensionv3.ExtensionConfigDiscoveryServiceClient

	version string // of the resource that is enforced, empty for none
	streams int    // in a row that brought nothing
	said    string // why the control plane gives nothing, as the log knows; empty while it does
}

// away is what the log knows of a control plane that does not answer.
const away = "away"

func (c *subscriber) run(ctx context.Context) {
	for {
		err := c.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		c.report(err)
		wait := min(retryBase<<min(c.streams, 8), retryMax)
		c.streams++
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait/2)): //nolint:gosec // jitter, no secret
		}
	}
}

// report logs why a stream has ended, unless it has logged that before.
func (c *subscriber) report(err error) {
	why := status.Convert(err)
	reason := fmt.Sprintf("%.1000s", why.Message())
	log, before := c.proxy.log.With("xds", strings.Join(c.Addresses, ","), "node", c.Node, "reason", reason), c.said
	switch why.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
		if c.said = reason; c.said != before {
			log.Error("control plane refuses this proxy, nothing changes until it lets it in")
		}
	default:
		if c.said = away; c.said != before {
			log.Warn("control plane is away, nothing changes until it is back")
		}
	}
}

// stream subscribes once and takes what comes until the stream ends.
func (c *subscriber) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.client.DeltaExtensionConfigs(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(c.first()); err != nil && !errors.Is(err, io.EOF) { // at io.EOF Recv returns why
		return err
	}
	if c.said == "" || c.said == away { // else the request is no sign yet that it is let in
		c.said = ""
		c.proxy.log.Info("subscribed", "xds", strings.Join(c.Addresses, ","), "node", c.Node, "resource", c.Resource)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		c.streams, c.said = 0, ""
		if err := stream.Send(c.answer(response)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// first is the request that opens a stream. It alone names the proxy and the
// version that it holds.
func (c *subscriber) first() *discoveryv3.DeltaDiscoveryRequest {
	text := structpb.NewStringValue
	about := map[string]*structpb.Value{"wasm": text(c.proxy.options.WasmName)}
	if c.Manage != "" {
		about["manage"] = text(c.Manage)
	}
	if c.proxy.options.Cluster != nil {
		about["quota_cluster"] = text("*") // see Options.Cluster
	}
	r := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{
			Id: c.Node, Cluster: "sluice", UserAgentName: "sluice",
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

// answer takes a response and makes its ACK or NACK.
func (c *subscriber) answer(response *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionConfigType, ResponseNonce: response.GetNonce()}
	for _, resource := range response.GetResources() {
		if resource.GetName() != c.Resource {
			continue
		}
		log := c.proxy.log.With("nonce", response.GetNonce(), "version", resource.GetVersion())
		if err := c.proxy.enforce(resource); err != nil {
			log.Error("policy refused, the one before stays in force", "error", err)
			r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: err.Error()}
			continue
		}
		c.version = resource.GetVersion()
		log.Info("policy in force")
	}
	return r
}

// enforce adopts the policy in a resource, with the filter that it names. It reads
// what sluice serve writes. There is one filter and one store, so vm_id, root_id and
// the runtime choose nothing.
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
	wasm, file := p.options.Wasm, config.GetVmConfig().GetCode().GetLocal().GetFilename()
	if file != Embedded {
		var err error
		if wasm, err = p.options.ReadFile(file); err != nil { // anew every time, as Envoy does
			return fmt.Errorf("read the filter: %w", err)
		}
	}
	return p.adopt(wasm, []byte(policy.GetValue()))
}
