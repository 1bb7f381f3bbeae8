package sim

import (
	"math"
	"slices"
)

// Tick makes every configuration in a worker that asked for ticks have one
// now, due or not.
func (h *Host) Tick(worker int) error {
	t, err := h.worker(worker)
	if err != nil {
		return err
	}
	t.Lock()
	defer t.Unlock()
	t.tick(true)
	return nil
}

// TickDue does all that is due by Now: in each worker, then in the main thread, it
// delivers what other ends of streams have said, then makes the ticks that are due, each once at most,
// then answers the requests that have been paused for too long.
func (h *Host) TickDue() {
	for _, t := range h.threads {
		t.Lock()
		t.deliverDue()
		t.tick(false)
		t.endIdle()
		t.Unlock()
	}
}

// Next returns when, by Now, TickDue will have something to do, unless something happens before.
// A caller that sets the time goes from one such moment to the next.
func (h *Host) Next() (ns int64, ok bool) {
	first := int64(math.MaxInt64)
	for _, t := range h.threads {
		t.Lock()
		first = min(first, t.next())
		t.Unlock()
	}
	now := h.o.Now()
	return now + max(first-h.elapsed(), 0), first < math.MaxInt64
}

// Changed gets a value when Next has become earlier, but for what is said on a stream.
func (h *Host) Changed() <-chan struct{} { return h.changed }

func (h *Host) change() {
	select {
	case h.changed <- struct{}{}:
	default: // one is there already
	}
}

func (t *thread) next() int64 {
	first := t.mail.due()
	for _, v := range t.vms() {
		for _, root := range v.roots {
			if root.tickPeriod != 0 {
				first = min(first, root.tickDue)
			}
		}
	}
	if t.host.o.StreamIdle > 0 && len(t.paused) > 0 {
		first = min(first, t.paused[0].idleDue)
	}
	return first
}

// tick goes through the contexts of a thread, also those of configurations
// that wait for their last request.
func (t *thread) tick(always bool) {
	now := t.host.elapsed()
	for _, v := range t.vms() {
		for _, root := range v.roots {
			if root.tickPeriod == 0 || (!always && now < root.tickDue) || v.scopes[root.id] != root {
				continue
			}
			v.enter(root, callTick, uint64(root.id))
			root.tickDue = t.host.elapsed() + root.tickPeriod
		}
	}
}

// endIdle answers the requests that have been paused for too long, also those of a
// VM that has failed: nothing else ends them.
func (t *thread) endIdle() {
	if t.host.o.StreamIdle == 0 {
		return
	}
	now := t.host.elapsed()
	for len(t.paused) > 0 && t.paused[0].idleDue <= now {
		x := t.paused[0]
		status := 504
		if x.scope.stream.in.HasBody {
			status = 408
		}
		x.sendReply(&localReply{
			status:     status,
			body:       []byte("stream timeout"),
			details:    "stream_idle_timeout",
			flags:      flagStreamIdle,
			grpcStatus: -1,
		})
	}
}

func (t *thread) forget(x *Exchange) {
	t.paused = slices.DeleteFunc(t.paused, func(other *Exchange) bool { return other == x })
}
