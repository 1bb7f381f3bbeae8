package serving

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/front"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/transport"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// callsGoOnFor is how long a process that stops goes on taking rate limit calls as before, while it
// says that it is unhealthy: proxies and balancers have to see that before connections are refused.
const callsGoOnFor = 3 * time.Second

// AddXDS has proxies get their policies from x.
func (s *Servers) AddXDS(x *xds.Server) {
	s.services = append(s.services, x)
	s.drains = append(s.drains, func(context.Context) { x.Stop() })
}

// AddQuota has proxies lease units of q.
func (s *Servers) AddQuota(q *Quota) {
	s.AddCounters(q)
	s.services = append(s.services, q.server)
}

// AddCounters runs q for rate limit calls alone.
func (s *Servers) AddCounters(q *Quota) {
	s.background = append(s.background, q.server.Run)
	s.drains = append(s.drains, q.Service.Drain)
	s.closes = append(s.closes, q.close)
	s.collectors = append(s.collectors, q.Service.Collectors()...)
}

// AddCalls has proxies make rate limit calls. Over HTTP they reach Calls.Handler.
func (s *Servers) AddCalls(c *Calls) {
	s.services = append(s.services, c.front)
	s.grpcOptions = append(s.grpcOptions, listener.CallOptions()...)
	s.goOnFor = callsGoOnFor
	s.collectors = append(s.collectors, c.front.Collectors()...)
}

// AllowFunc is the error of a proxy that may not count in a domain.
type AllowFunc = func(proxy quotaservice.Peer, domain string) error

// QuotaOptions are what a quota service needs. Log and Store must be set.
type QuotaOptions struct {
	quotaservice.Options

	ProxyCAs  func() *x509.CertPool // nil: proxies need no certificate
	AllowCall AllowFunc             // of rate limit calls; nil: all may make them in every domain
}

// Quota is a quota service and its store.
type Quota struct {
	Service *quotaservice.Service

	options QuotaOptions
	server  *transport.Server
}

// NewQuota starts a quota service. It closes the store if that fails.
func NewQuota(ctx context.Context, o QuotaOptions) (*Quota, error) {
	service, err := quotaservice.NewService(ctx, o.Options)
	if err != nil {
		return nil, errors.Join(err, o.Store.Close())
	}
	return &Quota{Service: service, options: o, server: transport.NewServer(service, o.ProxyCAs)}, nil
}

func (q *Quota) close() {
	q.Service.Close()
	if err := q.options.Store.Close(); err != nil {
		q.options.Log.Error("close quota store", "error", err)
	}
}

// CallOptions say how rate limit calls are answered.
type CallOptions struct {
	Answers front.Options // OpenCalls sets what it counts with, who is allowed, and the log
	Files   front.FileOptions
	XDS     front.XDSOptions // instead of files, if it has a target
	Waits   bool             // until the xDS server sends the first configuration
}

// Calls answer rate limit calls, which count in a quota service.
type Calls struct{ front *front.Service }

// OpenCalls makes what answers rate limit calls. Files are read first: an error says what is wrong in
// them. An xDS server may come later: until then calls end with an error.
func (q *Quota) OpenCalls(ctx context.Context, o CallOptions) (*Calls, error) {
	o.Answers.Counter, o.Answers.Healthy = q.Service, q.Service.Healthy
	o.Answers.Allow, o.Answers.Log = q.allowCall, q.options.Log
	c := &Calls{front.New(o.Answers)}
	if err := c.configure(ctx, o); err != nil {
		return nil, err
	}
	go c.front.WatchHealth(ctx)
	return c, nil
}

// configure reads the configuration, and reads it again when it changes.
func (c *Calls) configure(ctx context.Context, o CallOptions) error {
	switch {
	case o.XDS.Target == "":
		if err := c.front.WatchFiles(ctx, o.Files); err != nil {
			return fmt.Errorf("read the rate limit configuration: %w", err)
		}
		return nil
	case o.Waits:
		return c.front.WatchXDS(ctx, o.XDS)
	}
	go func() {
		if err := c.front.WatchXDS(ctx, o.XDS); err != nil && ctx.Err() == nil {
			o.Answers.Log.Error("no rate limit configuration comes", "error", err)
		}
	}()
	return nil
}

// allowCall says why the caller may not make calls in a domain. The API's guard has admitted those
// who do not call by gRPC. Calls count only in domains that are configured, so without
// QuotaOptions.AllowCall a certificate is enough.
func (q *Quota) allowCall(ctx context.Context, domain string) error {
	if _, isGRPC := peer.FromContext(ctx); !isGRPC {
		return nil
	}
	proxy, address := listener.PeerOf(ctx)
	if err := proxy.AdmitCall(q.options.ProxyCAs); err != nil || q.options.AllowCall == nil {
		return err
	}
	return q.options.AllowCall(quotaservice.Peer{Address: address, Certificate: proxy.Certificate()}, domain)
}

// Handler answers rate limit calls over HTTP. They end when they are done, also while the process
// stops.
func (c *Calls) Handler() http.Handler {
	mux := http.NewServeMux()
	c.front.AddRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}
