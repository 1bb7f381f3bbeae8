package quotaservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Found is how a key stands after an operation.
type Found struct {
	NowNs    int64            // by the store's clock
	Denied   bool             // too few units were left for an Inspect or a Hit
	HeldBack bool             // where Denied: only what is held leaves no room; false if the definition holds nothing
	Blocked  bool             // the key was blocked before
	WaitNs   int64            // where Denied: until they pass if nobody else asks; limit.Never
	HadUsage bool             // of a Reset: the key had counted something
	Windows  []quota.Standing // by window of the definition; what is held stands for its limit.Concurrency
	Held     *uint32          // units that are held; nil = the definition holds none
}

// Operate does something to one key: one of the actions of operators, see action.Action. Units that proxies lease count
// as used. Those that they have leased when a key is set or reset, they may spend until their leases end.
func (s *Service) Operate(
	ctx context.Context, domain string, d quota.Definition, key [16]byte, what action.Action,
) (Found, error) {
	counter, err := newCounter(domain, &d)
	if err != nil {
		return Found{}, err
	}
	terms := counter.terms
	_, isInc := what.(*action.Inc)
	_, isSet := what.(*action.Set)
	countsRunning := terms.HoldLimit != nil && len(terms.Windows) == 0
	if countsRunning && (isInc || isSet) {
		return Found{}, errors.New("this counts running requests, which inc and set cannot change: reset forgets them")
	}
	if s.apart.Load() {
		return Found{}, errOtherSecret
	}
	terms.Lease = quota.LeaseOff
	done := make(waiter)
	o := counter.operation(what, newHasher(s.secret.Load()), key, done)
	s.submit(&o)
	select {
	case <-done:
	case <-ctx.Done():
		return Found{}, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	out := &o.Outcome
	if out.Err != nil {
		return Found{}, fmt.Errorf("ask the quota store: %w", out.Err)
	}
	found := Found{
		NowNs: out.NowNs, Denied: out.Denied, HeldBack: out.HeldBack, Blocked: out.Blocked, WaitNs: out.WaitNs,
		HadUsage: out.HadUsage, Windows: out.Standings,
	}
	if terms.HoldLimit != nil { // stand puts it last, as the definition does
		found.Held = &found.Windows[len(found.Windows)-1].Used
	}
	return found, nil
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*keyOperation) { close(w) }

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.asked
}
