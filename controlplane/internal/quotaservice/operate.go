package quotaservice

import (
	"context"
	"errors"
	"fmt"

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
const AllWindows = -1

// Found is how a key stands after an operation.
type Found struct {
	NowNs    int64            // by the store's clock
	Denied   bool             // too few units were left for Inspect or Hit
	HeldBack bool             // where Denied: only what is held leaves no room
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
	countsRunning := own.holdLimit != nil && len(own.Windows) == 0
	if countsRunning && (cmd.What == Inc || cmd.What == Set) {
		return Found{}, errors.New("this counts running requests, which inc and set cannot change: reset forgets them")
	}
	own.Lease = quota.LeaseOff
	done := make(waiter)
	o := own.operation(cmd.action(), newHasher(*s.secret.Load()), domain, key, done)
	s.mu.Lock()
	s.keys.add(&o)
	s.mu.Unlock()
	s.pump()
	select {
	case <-done:
	case <-ctx.Done():
		return Found{}, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if o.err != nil {
		return Found{}, fmt.Errorf("ask the quota store: %w", o.err)
	}
	if cmd.Units == 0 && limit.Shut(d.Windows) {
		o.denied, o.waitNs = true, limit.Never
	}
	found := Found{
		NowNs: o.nowNs, Denied: o.denied, HeldBack: o.heldBack, Blocked: o.blocked, WaitNs: o.waitNs,
		HadUsage: o.hadUsage, Windows: o.standings,
	}
	if own.holdLimit != nil { // stand puts it last, as the definition does
		found.Held = &found.Windows[len(found.Windows)-1].Used
	}
	return found, nil
}

func (cmd Command) action() action {
	switch cmd.What {
	case Hit:
		return &hit{part: quota.Part{Cost: cmd.Units}}
	case Inc:
		return &inc{cmd.Units, cmd.Window}
	case Set:
		return &set{cmd.Units, cmd.Window}
	case Reset:
		return reset{}
	case Inspect:
	}
	return &inspect{cmd.Units}
}

// inspect finds out whether units are left.
type inspect struct{ units uint32 }

func (i *inspect) carryOut(o *operation, _ *record, s quota.State) (changed bool) {
	o.judge(&s, i.units)
	return false
}

// inc counts units in a window, or in all, whatever is left.
type inc struct {
	units  uint32
	window int
}

func (i *inc) carryOut(_ *operation, _ *record, s quota.State) (changed bool) {
	add(&s, i.window, i.units)
	return true
}

// set makes a window, or all, count so many units and nothing else. A block goes on.
type set struct {
	units  uint32
	window int
}

func (t *set) carryOut(_ *operation, r *record, s quota.State) (changed bool) {
	for i := range s.Windows {
		if t.window != AllWindows && t.window != i || s.Windows[i].Algorithm == limit.Block {
			continue
		}
		s.Usages[i] = limit.Usage{}
		if s.Windows[i].Algorithm == limit.TokenBucket { // what is leased of it counts no more
			s.SetSpendBy(i, s.NowNs)
		}
	}
	add(&s, t.window, t.units)
	r.generation = random() // a return does not know which window was set since its grant
	return true
}

// reset forgets the key. operation.decideOn has done so already.
type reset struct{}

func (reset) carryOut(*operation, *record, quota.State) (changed bool) { return true }

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*operation) { close(w) }

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}
