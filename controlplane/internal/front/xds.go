package front

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

const (
	configType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
	// minWait is how long the client waits before it opens the next connection or stream. It waits
	// longer each time, up to maxWait, until the server answers.
	minWait = 250 * time.Millisecond
	maxWait = 15 * time.Second
	// rejectAgainAfter is how long the client waits before it rejects a version again: many servers
	// send what was rejected again at once.
	rejectAgainAfter = time.Second
	// pingEvery is longer than servers demand by default, which is five minutes.
	pingEvery       = 6 * time.Minute
	connectWithin   = 20 * time.Second
	maxMessageBytes = maxTotalBytes
)

// XDSOptions say which xDS server has the configuration, and what this client tells it.
type XDSOptions struct {
	Target       string // HOST:PORT
	Node         string // its ID
	NodeMetadata map[string]string
	Credentials  credentials.TransportCredentials // nil = no TLS
	Headers      map[string]string                // of each stream
	Merge        bool                             // several resources may be of one domain
}

// WatchXDS puts the configuration that the server has in force, and each change of it until ctx ends.
// It returns when the first is in force, or ctx has ended. The server may be away or send a bad one
// at any time: then what is in force stays, and the log says why.
func (s *Service) WatchXDS(ctx context.Context, o XDSOptions) error {
	x, conn, err := newXDSClient(s, &o)
	if err != nil {
		return err
	}
	s.o.Log.Info("wait for the rate limit configuration", "xds", o.Target, "node", o.Node)
	go func() {
		x.run(metadata.NewOutgoingContext(ctx, metadata.New(o.Headers)))
		_ = conn.Close()
	}()
	select {
	case <-x.first:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// xdsClient asks one server for all configurations.
type xdsClient struct {
	service *Service
	ads     discoveryv3.AggregatedDiscoveryServiceClient
	node    *corev3.Node
	merge   bool
	first   chan struct{} // closed when the first configuration is in force
	logged  string        // the problem that was logged last, "" while all is well
}

func newXDSClient(s *Service, o *XDSOptions) (*xdsClient, *grpc.ClientConn, error) {
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(o.Target,
		grpc.WithTransportCredentials(o.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minWait, Multiplier: 2, Jitter: 0.2, MaxDelay: maxWait},
			MinConnectTimeout: connectWithin,
		}))
	if err != nil {
		return nil, nil, err
	}
	fields := make(map[string]*structpb.Value, len(o.NodeMetadata))
	for name, value := range o.NodeMetadata {
		fields[name] = structpb.NewStringValue(value)
	}
	return &xdsClient{
		service: s, ads: discoveryv3.NewAggregatedDiscoveryServiceClient(conn), merge: o.Merge,
		node:  &corev3.Node{Id: o.Node, Metadata: &structpb.Struct{Fields: fields}, UserAgentName: "sluice"},
		first: make(chan struct{}),
	}, conn, nil
}

// run opens one stream after the other until ctx ends.
func (x *xdsClient) run(ctx context.Context) {
	for wait := minWait; ; wait = min(2*wait, maxWait) {
		answered, err := x.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			wait = minWait
		}
		x.logOnce(err, func(err error) {
			x.service.o.Log.Warn("xDS stream ended, the configuration in force stays", "error", err)
		})
		sleep(ctx, wait)
	}
}

// logOnce logs a problem, unless it is the one that was logged last.
func (x *xdsClient) logOnce(err error, log func(error)) {
	if err.Error() != x.logged {
		log(err)
	}
	x.logged = err.Error()
}

// stream follows the server until the stream ends. It names no version at first, because a server
// that restarted may have given the same version to something else.
func (x *xdsClient) stream(ctx context.Context) (answered bool, err error) {
	stream, err := x.ads.StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	var version, nonce string       // of the configuration in force, and of the last answer
	var rejectedVersion string      // of the last answer that was rejected
	var rejection *rpcstatus.Status // of the last answer; nil: it was taken
	for {
		_ = stream.Send(&discoveryv3.DiscoveryRequest{ // Recv says why it failed
			Node: x.node, TypeUrl: configType, VersionInfo: version, ResponseNonce: nonce, ErrorDetail: rejection,
		})
		answer, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		nonce = answer.GetNonce()
		if rejection != nil && answer.GetVersionInfo() == rejectedVersion {
			sleep(ctx, rejectAgainAfter)
			continue
		}
		rejection = x.take(answer)
		if rejection == nil {
			version = answer.GetVersionInfo()
		} else {
			rejectedVersion = answer.GetVersionInfo()
		}
	}
}

// take puts the configurations of an answer in force, or says why not.
func (x *xdsClient) take(answer *discoveryv3.DiscoveryResponse) *rpcstatus.Status {
	configs, err := configsOf(answer)
	if err != nil {
		x.service.CountRejected()
	} else {
		err = x.service.Use(configs, x.merge)
	}
	if err != nil {
		x.logOnce(err, x.service.logTaken)
		return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: someOf(err).Error()}
	}
	x.logged = ""
	x.service.logTaken(nil)
	select {
	case <-x.first:
	default:
		close(x.first)
	}
	return nil
}

// configsOf reads the resources of an answer, in the order of their names: servers send them in any.
func configsOf(answer *discoveryv3.DiscoveryResponse) ([]*ratelimitconfig.Config, error) {
	configs := make([]*ratelimitconfig.Config, len(answer.GetResources()))
	for i, resource := range answer.GetResources() {
		message := &rlsconfv3.RateLimitConfig{}
		err := resource.UnmarshalTo(message)
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
		configs[i], err = ratelimitconfig.FromXDS(message)
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(configs, func(a, b *ratelimitconfig.Config) int { return cmp.Compare(a.File, b.File) })
	return configs, nil
}
