package quotaservice

import (
	"cmp"
	"context"
	"log/slog"
	"math"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// Whether the store answers, beside the asks. Whoever runs the service calls Heartbeat regularly.

// HeartbeatEvery is how often a service notes in the store which processes are alive.
const HeartbeatEvery = swapstore.LiveFor / 4

// storeLog logs why the store does not do what it should, once a while.
type storeLog struct {
	*slog.Logger
	closed func() error // not nil once this service gives up what the store has under way
}

func (l *storeLog) unusable(err error) {
	if l.closed() == nil {
		l.Error("use the store: meanwhile on_unavailable decides", "error", err)
	}
}

// Heartbeat notes in the store which processes have streams. If the store has lost its state, it
// stores the services' secret again: services with two secrets would count apart. Whoever runs
// the service calls it a few times within LiveFor.
func (s *Service) Heartbeat() {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout)
	err := s.agree(ctx, func() []byte { return *s.secret.Load() })
	cancel()
	if s.metrics.countBeat(err) {
		s.o.Log.Info("the store answers again")
	}
	if err != nil {
		s.storeLog.unusable(err)
	}
	type process struct {
		domain *domain
		number uint64
	}
	alive := map[process]bool{}
	s.mu.Lock()
	for w := range s.core.workers {
		if w.domain != nil {
			alive[process{w.domain, w.process}] = true
		}
	}
	s.mu.Unlock()
	for p := range alive {
		s.noteAlive(p.domain, p.number)
	}
}

// noteAlive notes in the store that a process is alive.
func (s *Service) noteAlive(d *domain, process uint64) {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout) // the heartbeat has more processes to note within LiveFor
	defer cancel()
	n, err := s.o.Store.Live(ctx, d.name, process)
	if err != nil {
		s.metrics.storeErrors.Add(1)
		s.storeLog.unusable(err)
		return
	}
	s.mu.Lock()
	d.proxies = uint32(min(int64(n), math.MaxUint32))
	s.mu.Unlock()
}

// Healthy says why the store does not answer, or has no state yet.
func (s *Service) Healthy(ctx context.Context) error {
	if s.apart.Load() {
		return errOtherSecret
	}
	failed := make(chan error, 1)
	s.o.Store.Swap(ctx, []swapstore.Swap{{}}, func(_ int, r swapstore.Result) { failed <- r.Err })
	select {
	case err := <-failed:
		return cmp.Or(err, s.Starting())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
