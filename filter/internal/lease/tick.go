package lease

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Tick decides requests whose time is over, gives back what is idle, and finds out whether
// the service is silent. Period says when to call it next.
func (c *Client) Tick(now int64) {
	c.returns = c.worker.takeIdle(c.returns, c.stream.number, len(c.returns)+maxReturns)
	if !c.stoodStill(now) {
		c.listen(now)
	}
	c.order = slices.DeleteFunc(c.order, func(w *waiter) bool {
		if w.ask != nil && (c.worker.Silent || now >= w.deadlineNs) {
			c.expire(w)
		}
		return w.verdict == nil
	})
	c.abandon(now)
	c.renew(now)
	if c.worker.Silent {
		c.probe(now)
	}
	c.Resume(now)
}

// Period is how soon Tick must be called, in milliseconds.
func (c *Client) Period() uint32 {
	switch {
	case len(c.ready) > 0:
		return 1
	case len(c.waiters) > 0 || c.sentNs != 0:
		return 10
	}
	if ns := c.worker.idleNs; ns > 0 {
		return uint32(min(max(ns, minReturnNs)/1e6, 1000))
	}
	return 1000
}

// expire makes a request ready that has waited for too long.
func (c *Client) expire(w *waiter) {
	c.stopWaiting(w)
	w.short = decide.Silent
	c.ready = append(c.ready, w)
}

// End decides all requests that wait, without the service: the configuration ends.
func (c *Client) End(now int64) {
	for _, w := range c.order {
		if w.ask != nil {
			c.expire(w)
		}
	}
	for len(c.ready) > 0 {
		c.Resume(now)
	}
	if c.stream.number != 0 {
		c.host.Cancel()
		c.stream.number = 0
	}
}

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// stoodStill reports whether the tick comes so late that the worker was busy with
// something else: what it has sent may not have left, and what has come may lie
// behind the tick. The service gets its timeout anew, once until it answers. Requests
// wait no longer for that. After a very long time it begins a new stream.
func (c *Client) stoodStill(now int64) bool {
	gap := now - max(c.tickNs, c.sentNs)
	late := c.sentNs != 0 && !c.stalled && gap > c.worker.TimeoutNs/2 && gap < standstillNs
	c.tickNs = now
	if late {
		c.stalled, c.sentNs = true, now
	}
	return late
}

// listen declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It ends a silent stream.
func (c *Client) listen(now int64) {
	timeout := c.worker.TimeoutNs
	silent := c.sentNs != 0 && now-c.sentNs >= timeout && now-c.heardNs >= timeout
	if !silent && c.stream.number == 0 {
		silent = slices.ContainsFunc(c.order, func(w *waiter) bool { return w.ask != nil && now >= w.deadlineNs })
	}
	if !silent {
		return
	}
	c.worker.Silent, c.pauseNs = true, maxPauseNs
	if c.stream.number != 0 {
		c.host.Cancel()
		c.Closed(now)
	}
}

// probe asks the silent service for no units, to hear whether it answers again.
func (c *Client) probe(now int64) {
	if c.sentNs != 0 || !c.ensureOpen(now) {
		return
	}
	look := quota.Part{Inspect: true} // at the first definition, and a key that nobody has
	m := quota.Asks{Definitions: c.worker.Definitions[:1], Asks: []quota.Ask{{Parts: []quota.Part{look}}}}
	c.stream.defined[0] = true
	c.send(&m, now)
}

// abandon lets keys be asked for again whose asks have got no answer in time,
// though others have. A late answer still counts.
func (c *Client) abandon(now int64) {
	for _, a := range c.sent {
		if now-a.sentNs < c.worker.TimeoutNs {
			break
		}
		if c.flying[a.key] == a {
			delete(c.flying, a.key)
			a.forgo(c.worker)
		}
	}
	for len(c.sent) > 0 && now-c.sent[0].sentNs >= lateNs {
		c.sent = c.sent[1:]
	}
}
