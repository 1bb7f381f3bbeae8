package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	reloadEvery   = time.Second
	shutdownGrace = 10 * time.Second

	// What Envoy allows the head of a request and of a response.
	maxHeaderBytes = 60 << 10
	maxHeaders     = 100

	maxAdminConnections = 64
)

// Serve answers requests on a listener, and admin requests on another one
// unless that is nil, until ctx ends; then it lets requests under way end.
func (p *Proxy) Serve(ctx context.Context, listener, admin net.Listener) error {
	ticking, stop := context.WithCancel(ctx)
	defer stop()
	ticked := make(chan struct{})
	go func() {
		defer close(ticked)
		p.tick(ticking)
	}()

	var servers []*http.Server
	failed := make(chan error, 2)
	start := func(l net.Listener, handler http.Handler, limit int) {
		c := newCrowd(l, limit, p.options.BodyIdle, func() { p.counts.crowdedOut.Add(1) })
		s := p.server(handler)
		s.ConnState = c.follow
		servers = append(servers, s)
		go func() { failed <- s.Serve(c) }()
	}
	start(listener, p, p.options.Connections)
	if admin != nil {
		start(admin, p.Admin(), maxAdminConnections)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	for _, s := range servers {
		if s.Shutdown(grace) != nil {
			// Out of patience: what is still under way is cut off.
			err = errors.Join(err, s.Close())
		}
	}
	<-ticked
	return err
}

func (p *Proxy) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: p.options.HeaderTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		// OPTIONS * is for the filter to see like all else.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

// tick gives the VMs their ticks when they are due, and brings failed ones back, as
// Envoy's FAIL_RELOAD does.
func (p *Proxy) tick(ctx context.Context) {
	reload := time.NewTicker(reloadEvery)
	defer reload.Stop()
	for {
		due := time.NewTimer(p.untilDue())
		select {
		case <-ctx.Done():
			due.Stop()
			return
		case <-reload.C:
			p.reload()
		case <-p.host.Changed():
		case <-due.C:
		}
		due.Stop()
		p.host.TickDue()
	}
}

// untilDue is how long the VMs have nothing to do but requests.
func (p *Proxy) untilDue() time.Duration {
	at, ok := p.host.Next()
	if !ok {
		return reloadEvery
	}
	return max(time.Until(time.Unix(0, at)), 0)
}

func (p *Proxy) reload() {
	if !p.broken.Swap(false) {
		return
	}
	for worker := range p.host.Workers() {
		if err := p.host.Reload(worker); err != nil {
			p.broken.Store(true)
			p.log.Error("restart a failed VM", "worker", worker, "error", err)
		}
	}
}
