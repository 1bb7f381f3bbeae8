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

	"github.com/sluice-ratelimit/sluice/envoy"
)

// As in a rendered bootstrap.
const (
	retryBase      = 500 * time.Millisecond
	retryMax       = 5 * time.Second
	keepaliveEvery = 10 * time.Second
)

// refusedMax is the longest wait of a proxy that was refused, until somebody
// mends that. The first wait is retryMax.
const refusedMax = 30 * time.Second

// extensionConfigType is the type of the resource and of its discovery.
const extensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// Subscription says which control plane gives the policy, and to whom.
type Subscription struct {
	Addresses []string    // HOST:PORT each, tried in turn
	TLS       *tls.Config // nil = plain text
	Node      string      // id by which the control plane knows this proxy
	Resource  string      // default envoy.ResourceName
	Manage    string      // where the control plane may send management requests, "" = nowhere
	Without   string      // what is in force while the control plane has no policy, for the log
}

// Subscribe takes policies from a control plane by Delta ECDS until ctx ends.
// What it refuses it answers with a NACK, and the policy before stays; so does
// the last one while the control plane is away.
func (p *Proxy) Subscribe(ctx context.Context, s Subscription) error {
	if s.Node == "" {
		return errors.New("subscribe: no node id: the control plane tells proxies apart by it")
	}
	s.Resource = cmp.Or(s.Resource, envoy.ResourceName)
	s.Without = cmp.Or(s.Without, "nothing is limited")
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
	quiet   bool   // the log knows that the control plane is away
	refusal string // that the log knows, empty once the control plane has let the proxy in
}

func (c *subscriber) run(ctx context.Context) {
	for {
		err := c.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		base, longest := retryBase, retryMax
		if refused(err) {
			base, longest = retryMax, refusedMax
		}
		c.report(err)
		wait := min(base<<min(c.streams, 8), longest)
		c.streams++
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait/2)): //nolint:gosec // jitter, no secret
		}
	}
}

// refused reports whether the control plane answered and does not let the proxy in.
func refused(err error) bool {
	code := status.Code(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.InvalidArgument
}

// xds names the control plane in the log.
func (c *subscriber) xds() string { return strings.Join(c.Addresses, ",") }

// report logs why a stream has ended, unless it has logged that before.
func (c *subscriber) report(err error) {
	reason := fmt.Sprintf("%.1000s", status.Convert(err).Message())
	switch {
	case refused(err) && c.refusal != reason:
		c.refusal = reason
		c.proxy.log.Error("control plane refuses this proxy, nothing changes until it lets it in", "xds", c.xds(), "node", c.Node, "reason", reason)
	case !refused(err) && !c.quiet:
		c.quiet, c.refusal = true, ""
		c.proxy.log.Warn("control plane is away, nothing changes until it is back", "xds", c.xds(), "error", reason)
	}
}

// subscribed notes that the control plane listens.
func (c *subscriber) subscribed() {
	c.quiet, c.refusal = false, ""
	c.proxy.log.Info("subscribed", "xds", c.xds(), "node", c.Node, "resource", c.Resource)
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
	if c.refusal == "" { // else the request is no sign yet
		c.subscribed()
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		c.streams = 0
		if c.refusal != "" {
			c.subscribed()
		}
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
	if err := c.take(response); err != nil {
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: err.Error()}
	}
	return r
}

// take applies a response. The text of its error is for the control plane;
// the log gets the whole reason.
func (c *subscriber) take(response *discoveryv3.DeltaDiscoveryResponse) error {
	log := c.proxy.log.With("nonce", response.GetNonce())
	for _, name := range response.GetRemovedResources() {
		if name != c.Resource {
			continue
		}
		// As in Envoy, where the default_config takes over.
		if err := c.proxy.fallBack(); err != nil {
			return err
		}
		c.version = ""
		log.Warn("control plane has no policy for this proxy", "in_force", c.Without)
	}
	for _, resource := range response.GetResources() {
		if resource.GetName() != c.Resource {
			continue
		}
		if err := c.enforce(resource); err != nil {
			log.Error("policy refused, the one before stays in force", "version", resource.GetVersion(), "error", err)
			var said *nack
			if errors.As(err, &said) {
				return errors.New(said.text)
			}
			return err
		}
		c.version = resource.GetVersion()
		log.Info("policy in force", "version", c.version)
	}
	return nil
}

func (c *subscriber) enforce(resource *discoveryv3.Resource) error {
	config, err := readPlugin(resource)
	if err != nil {
		return err
	}
	wasm, err := c.proxy.code(config.code)
	if err != nil {
		return err
	}
	if err := c.proxy.adopt(wasm, config.policy); err != nil {
		return &nack{text: "Unable to create Wasm plugin " + config.name, cause: err}
	}
	return nil
}
