package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

const (
	shutdownGrace = 10 * time.Second

	maxConnections = 4096     // one more waits
	maxHeaderBytes = 60 << 10 // as in Envoy
	slop           = 4 << 10  // net/http lets a request have so much more, or twice that
)

// Serve answers requests on a listener, and admin requests on another one
// unless that is nil, until ctx ends; then it lets requests under way end.
func (p *Proxy) Serve(ctx context.Context, listener, admin net.Listener) error {
	ticking, stop := context.WithCancel(context.WithoutCancel(ctx)) // as long as requests are under way, which may wait for one
	var ticks sync.WaitGroup
	ticks.Go(func() { p.tick(ticking) })
	defer ticks.Wait()
	defer stop()
	all, ctx := errgroup.WithContext(ctx)
	start := func(l net.Listener, handler http.Handler) {
		s := &http.Server{
			Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaderBytes - slop,
			// OPTIONS * is refused like all that is no path.
			DisableGeneralOptionsHandler: true,
			ErrorLog:                     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		}
		all.Go(func() error {
			if err := s.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		all.Go(func() error {
			<-ctx.Done()
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
			defer cancel()
			if s.Shutdown(grace) != nil {
				return s.Close() // what is still under way is cut off
			}
			return nil
		})
	}
	start(listener, p)
	if admin != nil {
		start(admin, p.Admin())
	}
	return all.Wait()
}

// tick gives the VMs their ticks when they are due.
func (p *Proxy) tick(ctx context.Context) {
	for {
		wait := time.Second
		if due, ok := p.host.Next(); ok {
			wait = time.Until(time.Unix(0, due))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.host.Changed():
		case <-time.After(wait):
		}
		p.host.TickDue()
	}
}
