package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/front"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// shutdownGrace is how long requests may take to end once serve stops.
const shutdownGrace = 10 * time.Second

// callsGoOnFor is how long a process that stops goes on taking rate limit calls as before, while it
// says that it is unhealthy: proxies and balancers have to see that before connections are refused.
const callsGoOnFor = 3 * time.Second

// maxHeaderBytes is far more than any client of the API sends.
const maxHeaderBytes = 32 << 10

// maxRequests is how many requests of one HTTP/2 connection are served at a time.
const maxRequests = 16

// servers are the two listeners of one process, and what answers on them.
type servers struct {
	log          *slog.Logger
	push         *xds.Server // nil: no xDS
	quotas       quotas
	calls        *front.Service // nil: no rate limit calls
	proxies      string         // what the log calls the listener for proxies
	guard        guard
	handler      http.Handler
	httpListener net.Listener
	xdsListener  net.Listener
}

func (s *servers) close() {
	_ = s.httpListener.Close() // run may have closed them
	_ = s.xdsListener.Close()
}

// run serves until ctx ends, then lets what is under way finish.
func (s *servers) run(ctx context.Context) error {
	// Canceled when serve stops, so that waits for proxies end at once.
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	web := s.webServer(requests)
	stream := s.grpcServer(requests)
	failed := make(chan error, 2)
	if s.calls != nil {
		go s.calls.WatchHealth(ctx)
	}
	go func() { failed <- s.serveWeb(web) }()
	go func() { failed <- stream.Serve(s.xdsListener) }()
	s.log.Info("serving", "http", s.httpListener.Addr().String(), s.proxies, s.xdsListener.Addr().String(),
		"tls", s.guard.http != nil, "access", s.guard.identify != nil)
	var err error
	select {
	case <-ctx.Done():
		s.log.Info("stopping")
		if s.calls != nil {
			time.Sleep(callsGoOnFor)
		}
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	if s.push != nil {
		s.push.Stop()
	}
	endRequests()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	s.stop(grace, web, stream)
	return err
}

// stop ends the servers, the quota service last: streams and calls use it. The first that
// connections hear is that they are to go elsewhere. Streams end when the service drains. Calls end
// by themselves, and are taken until all connections have heard it.
func (s *servers) stop(grace context.Context, web *http.Server, stream *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		stopGRPC(grace, stream)
		close(stopped)
	}()
	if s.quotas.service != nil {
		s.quotas.service.Drain(grace)
	}
	if err := web.Shutdown(grace); err != nil {
		s.log.Warn("stop HTTP", "error", err)
	}
	<-stopped
	if s.quotas.service != nil {
		s.quotas.close(s.log)
	}
}

// webServer makes the server of the API and the console. Its requests end with ctx.
func (s *servers) webServer(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s.handler,
		ConnContext:       listener.Context,
		TLSConfig:         s.guard.http,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(lograte.NewLimit(1).Logger(s.log).Handler(), slog.LevelWarn),
	}
}

func (s *servers) serveWeb(web *http.Server) error {
	if s.guard.http != nil {
		return web.ServeTLS(s.httpListener, "", "")
	}
	return web.Serve(s.httpListener)
}

// grpcServer makes the server for proxies. What it does in the background ends with ctx.
func (s *servers) grpcServer(ctx context.Context) *grpc.Server {
	options := append(listener.ServerOptions(s.guard.xds), grpc.ForceServerCodecV2(xds.NewCodec()))
	if s.quotas.service != nil {
		options = append(options, s.quotas.serverOptions(s.push == nil)...)
	}
	if s.calls != nil {
		options = append(options, listener.CallOptions()...)
	}
	server := grpc.NewServer(options...)
	if s.push != nil {
		s.push.Register(server)
	}
	if s.quotas.service != nil {
		if !s.quotas.callsAlone {
			s.quotas.server.Register(server)
		}
		go s.quotas.server.Run(ctx)
	}
	if s.calls != nil {
		s.calls.Register(server)
	}
	return server
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
