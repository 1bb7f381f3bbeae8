package quotaservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// What says what Operate does to a key.
type What uint8

// What Operate does.
const (
	Inspect What = iota // change nothing
	Hit                 // take the units if all windows have them left, as a request without a lease does
	Inc                 // count the units more, whatever is left
	Set                 // as if the key had used so many units, and nothing before
	Reset               // forget the key
)

// Command is what Operate does to a key.
type Command struct {
	What   What
	Units  uint32 // of all but Reset; Inspect asks whether they are left
	Window int    // of Inc and Set: index in the definition, or AllWindows
}

// AllWindows makes Inc and Set act on every window.
const AllWindows = action.AllWindows

// Found is how a key stands after an operation.
type Found struct {
	NowNs    int64            // by the store's clock
	Denied   bool             // too few units were left for Inspect or Hit
	HeldBack bool             // where Denied: only what is held leaves no room; false if the definition holds nothing
	Blocked  bool             // the key was blocked before
	WaitNs   int64            // where Denied: until they pass if nobody else asks; limit.Never
	HadUsage bool             // of Reset: the key had counted something
	Windows  []quota.Standing // by window of the definition; what is held stands for its limit.Concurrency
	Held     *uint32          // units that are held; nil = the definition holds none
}

// Operate does something to one key. Units that proxies lease count as used. Those that they
// have leased when a key is set or reset, they may spend until their leases end.
func (s *Service) Operate(
	ctx context.Context, domain string, d quota.Definition, key [16]byte, cmd Command,
) (Found, error) {
	own, err := newDefinition(domain, &d)
	if err != nil {
		return Found{}, err
	}
	countsRunning := own.HoldLimit != nil && len(own.Windows) == 0
	if countsRunning && (cmd.What == Inc || cmd.What == Set) {
		return Found{}, errors.New("this counts running requests, which inc and set cannot change: reset forgets them")
	}
	if s.apart.Load() {
		return Found{}, errOtherSecret
	}
	own.Lease = quota.LeaseOff
	done := make(waiter)
	o := own.operation(cmd.action(), newHasher(s.secret.Load()), domain, key, done)
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
	if cmd.Units == 0 && limit.Shut(d.Windows) { // as the filter knows without an ask
		out.Denied, out.WaitNs = true, limit.Never
	}
	found := Found{
		NowNs: out.NowNs, Denied: out.Denied, HeldBack: out.HeldBack, Blocked: out.Blocked, WaitNs: out.WaitNs,
		HadUsage: out.HadUsage, Windows: out.Standings,
	}
	if own.HoldLimit != nil { // stand puts it last, as the definition does
		found.Held = &found.Windows[len(found.Windows)-1].Used
	}
	return found, nil
}

func (cmd Command) action() action.Action {
	switch cmd.What {
	case Hit:
		return &action.Hit{Part: quota.Part{Cost: cmd.Units}}
	case Inc:
		return &action.Inc{Units: cmd.Units, Window: cmd.Window}
	case Set:
		return &action.Set{Units: cmd.Units, Window: cmd.Window}
	case Reset:
		return action.Reset{}
	case Inspect:
	}
	return &action.Inspect{Units: cmd.Units}
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*operation) { close(w) }

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.asked
}
