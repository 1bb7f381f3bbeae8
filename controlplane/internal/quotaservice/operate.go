package quotaservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Operation is what Operate does to a key.
type Operation struct {
	What   What
	Units  uint32 // of all but Reset; Inspect asks whether they are left
	Window int    // of Inc and Set: index in the definition, or AllWindows
}

// AllWindows makes Inc and Set act on every window.
const AllWindows = -1

// Found is how a key stands after an operation.
type Found struct {
	NowNs    int64 // by the store's clock
	Denied   bool  // too few units were left for Inspect or Hit
	HeldBack bool  // where Denied: only what is held leaves no room
	Blocked  bool  // the key was blocked before
	WaitNs   int64 // where Denied: until they pass if nobody else asks; limit.Never
	HadUsage bool  // of Reset: the key had counted something
	Windows  []quota.Standing
}

// Operate does something to one key. Units that proxies lease count as used. Those that they
// have leased when a key is set or reset, they may spend until their leases end.
func (s *Service) Operate(
	ctx context.Context, domain string, d quota.Definition, id [16]byte, what Operation,
) (Found, error) {
	own, err := newDefinition(domain, &d)
	if err != nil {
		return Found{}, err
	}
	countsRunning := own.holdLimit != nil && len(own.Windows) == 0
	if countsRunning && (what.What == Inc || what.What == Set) {
		return Found{}, errors.New("this counts running requests, which inc and set cannot change: reset forgets them")
	}
	own.Lease = quota.LeaseOff
	done := make(waiter)
	o := own.operation(what.What, newHasher(*s.secret.Load()), domain, id, done)
	o.n, o.window = what.Units, what.Window
	o.part.Cost = what.Units
	s.mu.Lock()
	s.keys.add(&o)
	s.pump()
	s.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return Found{}, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if o.err != nil {
		return Found{}, fmt.Errorf("ask the quota store: %w", o.err)
	}
	if what.Units == 0 && limit.Shut(d.Windows) {
		o.denied, o.waitNs = true, limit.Never
	}
	return Found{
		NowNs: o.nowNs, Denied: o.denied, HeldBack: o.heldBack, Blocked: o.blocked, WaitNs: o.waitNs,
		HadUsage: o.hadUsage, Windows: o.standings,
	}, nil
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*operation) { close(w) }

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}
