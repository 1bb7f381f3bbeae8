// Package serving runs the two servers of a process: HTTP, and gRPC for proxies.
//
// A command makes Servers by New, adds the parts that it has, listens, and calls Run:
//
//	serve, quickstart   AddXDS, AddQuota, AddCalls
//	quota               AddQuota, AddCalls
//	ratelimit           AddCounters, AddCalls
//
// Its invariant: a process that stops answers what it has taken, as long as that takes no longer
// than a grace. The package must not know flags, or which command runs it.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/transport"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

const (
	// shutdownGrace is how long requests may take to end once the process stops.
	shutdownGrace = 10 * time.Second
	// maxHeaderBytes is far more than any client of the API sends.
	maxHeaderBytes = 32 << 10
	// maxRequests is how many requests of one HTTP/2 connection are served at a time.
	maxRequests = 16
	// spreadAfter is how old the connections of a proxy get with Options.Spread.
	spreadAfter = 5 * time.Minute
)

// Guard is what callers must show. Its files are read again when they change.
type Guard struct {
	HTTP     *tls.Config                               // nil: plain text
	Proxies  *tls.Config                               // nil: plain text
	Identify func(*http.Request) (access.Caller, bool) // nil: anyone may call over HTTP
	ProxyCAs func() *x509.CertPool                     // nil: proxies need no certificate
}

// Listeners are where a process serves.
type Listeners struct{ HTTP, Proxies net.Listener }

// Close closes them. Run may have done it.
func (l Listeners) Close() { _ = errors.Join(l.HTTP.Close(), l.Proxies.Close()) }

// Options are what holds for all parts.
type Options struct {
	Log   *slog.Logger
	Guard Guard
	Name  string // of the listener for proxies, in the log
	// Spread has proxies connect anew every few minutes, so that they find processes that were
	// added behind the address.
	Spread bool
}

// Servers are the two servers of a process. Make them with New.
type Servers struct {
	Options

	// What the parts are, see parts.go.
	services    []service
	grpcOptions []grpc.ServerOption
	background  []func(context.Context)       // runs while there may be requests
	goOnFor     time.Duration                 // as before, once the process is to stop
	drains      []func(grace context.Context) // end the streams
	closes      []func()
	collectors  []prometheus.Collector
}

// service is a gRPC service.
type service interface {
	Register(on grpc.ServiceRegistrar)
}

// New returns servers without a part.
func New(o Options) *Servers {
	options := append(listener.ServerOptions(o.Guard.Proxies),
		grpc.ForceServerCodecV2(transport.NewCodec(xds.NewCodec())))
	if o.Spread {
		k := listener.Keepalive()
		k.MaxConnectionAge = spreadAfter
		k.MaxConnectionAgeGrace = time.Minute
		options = append(options, grpc.KeepaliveParams(k))
	}
	return &Servers{Options: o, grpcOptions: options}
}

// Collectors are the metrics of the parts.
func (s *Servers) Collectors() []prometheus.Collector { return s.collectors }

// Close closes the parts, after Run or instead of it. Until Run returns, streams and calls use them.
func (s *Servers) Close() {
	for _, end := range s.closes {
		end()
	}
}

// Run serves until ctx ends, then lets what is under way finish. The handler answers over HTTP.
func (s *Servers) Run(ctx context.Context, on Listeners, handler http.Handler) error {
	// Canceled when the process stops, so that waits for proxies end at once.
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	web := s.webServer(requests, handler)
	proxies := grpc.NewServer(s.grpcOptions...)
	for _, part := range s.services {
		part.Register(proxies)
	}
	for _, work := range s.background {
		go work(requests)
	}
	failed := make(chan error, 2)
	go func() { failed <- s.serveWeb(web, on.HTTP) }()
	go func() { failed <- proxies.Serve(on.Proxies) }()
	s.Log.Info("serving", "http", on.HTTP.Addr().String(), s.Name, on.Proxies.Addr().String(),
		"tls", s.Guard.HTTP != nil, "access", s.Guard.Identify != nil)
	var err error
	select {
	case <-ctx.Done():
		s.Log.Info("stopping")
		time.Sleep(s.goOnFor)
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	endRequests()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	s.stop(grace, web, proxies)
	return err
}

// stop ends the servers. The first that connections hear is that they are to go elsewhere. Streams
// end when the parts drain. Calls end by themselves, and are taken until all connections have heard
// it.
func (s *Servers) stop(grace context.Context, web *http.Server, proxies *grpc.Server) {
	var stopping, draining sync.WaitGroup
	stopping.Go(func() { stopGRPC(grace, proxies) })
	for _, drain := range s.drains {
		draining.Go(func() { drain(grace) })
	}
	draining.Wait()
	if err := web.Shutdown(grace); err != nil {
		s.Log.Warn("stop HTTP", "error", err)
	}
	stopping.Wait()
}

// webServer makes the server of HTTP. Its requests end with ctx.
func (s *Servers) webServer(ctx context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ConnContext:       listener.Context,
		TLSConfig:         s.Guard.HTTP,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(lograte.NewLimit(1).Logger(s.Log).Handler(), slog.LevelWarn),
	}
}

func (s *Servers) serveWeb(web *http.Server, on net.Listener) error {
	if s.Guard.HTTP != nil {
		return web.ServeTLS(on, "", "")
	}
	return web.Serve(on)
}

// stopGRPC lets streams end until ctx does.
func stopGRPC(ctx context.Context, s *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.Stop()
	}
}
