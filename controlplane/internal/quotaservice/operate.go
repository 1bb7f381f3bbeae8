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
	WaitNs   int64 // where Denied: until they pass if nobody else asks; limit.Never
	HadUsage bool  // of Reset: the key had counted something
	Windows  []quota.Standing
}

// Operate does something to one key. Units that proxies hold count as used; what
// they hold when a key is set or reset they may spend until their leases end.
func (s *Service) Operate(ctx context.Context, domain string, d quota.Definition, id [16]byte, what Operation) (Found, error) {
	own, err := newDefinition(domain, &d)
	if err != nil {
		return Found{}, err
	}
	if own.slots != nil && len(own.Windows) == 0 && (what.What == Inc || what.What == Set) {
		return Found{}, errors.New("this counts what runs, which no operation changes: reset forgets it")
	}
	own.Lease = quota.LeaseOff
	finished := make(waiter)
	o := own.operation(what.What, newHasher(*s.secret.Load()), domain, id, finished)
	o.n, o.window, o.part = what.Units, what.Window, quota.Part{Cost: what.Units}
	s.mu.Lock()
	s.keys.add(&o)
	s.mu.Unlock()
	s.pump()
	select {
	case <-finished:
	case <-ctx.Done():
		return Found{}, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if o.err != nil {
		return Found{}, fmt.Errorf("ask the quota store: %w", o.err)
	}
	if what.Units == 0 && limit.Shut(d.Windows) {
		o.denied, o.waitNs = true, limit.Never
	}
	return Found{NowNs: o.nowNs, HeldBack: o.heldBack, Denied: o.denied, WaitNs: o.waitNs, HadUsage: o.hadUsage, Windows: o.standings}, nil
}

// waiter is closed when its operation is finished.
type waiter chan struct{}

func (w waiter) finished(*operation) { close(w) }

// judge finds out whether units are left.
func (o *operation) judge(s *quota.State, units uint32) {
	if o.slots != nil {
		o.judgeHeld(s, units)
		o.holds = units > 0 && !o.denied && o.err == nil
		return
	}
	if s.Left(quota.Terms{}) < units {
		o.denied, o.waitNs = true, s.WaitNs(units)
	}
}

// setTo makes the window, or all, count n units and nothing else.
func setTo(s *quota.State, window int, n uint32) {
	if window == AllWindows {
		clear(s.Usages)
		for i := range s.Stamps {
			s.Stamps[i] = s.NowNs
		}
	} else {
		s.Usages[window] = limit.Usage{}
	}
	add(s, window, n)
}

// add counts n units in the window, or in all.
func add(s *quota.State, window int, n uint32) {
	of := *s
	if window != AllWindows {
		of = s.Some(window, window+1)
	}
	of.Add(n, quota.Terms{})
}

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}
