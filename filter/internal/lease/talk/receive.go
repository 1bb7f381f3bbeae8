package talk

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Receive takes a message of the service. Next returns the requests that have waited for it.
func (c *Client) Receive(message []byte, now int64) error {
	if !c.stream.isOpen() {
		return nil
	}
	if err := c.inMessage.Decode(message); err != nil {
		c.hangUp(now)
		return err
	}
	c.noteAnswer()
	c.worker.SetProxies(c.inMessage.Proxies)
	for i := range c.inMessage.Results {
		c.takeResult(&c.inMessage.Results[i], now)
	}
	return nil
}

// takeResult ends an ask by its result.
func (c *Client) takeResult(result *quota.AskResult, now int64) {
	a := c.asks.find(result.ID)
	switch {
	case a == nil: // it has come more than lateNs after the ask
	case result.Outcome == quota.Unknown:
		c.defineAgain(a)
	case a.isLook():
		c.tellLooks(a, result, now)
	case result.Outcome == quota.Busy:
		c.reject(a, result)
	default: // Granted, Denied or Unavailable, or what a newer service answers
		c.takeGrants(a, result, now)
	}
}

// defineAgain has the ask queued again, with its definitions: the service lacks one of them.
func (c *Client) defineAgain(a *ask) {
	for i := range a.parts {
		delete(c.stream.defined, a.parts[i].Wire.Definition)
	}
	c.asks.askAgain(a)
}

// reject has the requests wait no longer: the service takes no more asks now.
func (c *Client) reject(a *ask, result *quota.AskResult) {
	c.decideQueued(a, result)
	for _, req := range a.waiters {
		req.stopWaiting(cluster.Rejected)
	}
	c.finish(a)
}

// takeGrants has lease.HandOut hand out the grants of an ask, if it has any. The requests that waited for it go on.
// HandOut comes before finish, which gives up reports that have no answer: those could not give units any more.
func (c *Client) takeGrants(a *ask, result *quota.AskResult, now int64) {
	c.decideQueued(a, result)
	trip := lease.Trip{Stream: c.stream.number, SentNs: a.sentNs, CameNs: now, IsLate: a.state == late}
	for _, req := range a.waiters {
		c.verdicts = append(c.verdicts, req.Verdict)
	}
	for i := range a.parts {
		lease.HandOut(&a.parts[i], grantOf(result, i), trip, c.verdicts)
	}
	clear(c.verdicts)
	c.verdicts = c.verdicts[:0]
	c.finish(a)
}

// tellLooks writes how the keys stand into the looks that wait for it.
func (c *Client) tellLooks(a *ask, result *quota.AskResult, now int64) {
	for _, req := range a.waiters {
		for i := range a.parts {
			req.Look.Note(&a.parts[i], grantOf(result, i), now)
		}
	}
	c.finish(a)
}

// finish ends an ask whose requests have their result. Each goes on, unless it waits for other asks, too.
func (c *Client) finish(a *ask) {
	for _, req := range a.dropWaiters() {
		if len(req.asks) == 0 {
			c.waiters.makeReady(req)
		}
	}
	c.asks.move(a, over)
}

// grantOf is the grant for part i of the ask, nil if the result has none.
func grantOf(result *quota.AskResult, i int) *quota.Grant {
	switch result.Outcome {
	case quota.Granted, quota.Denied, quota.Unavailable:
		if i < len(result.Grants) { // an older service has none if it is Unavailable
			return &result.Grants[i]
		}
	default:
	}
	return nil
}

// decideQueued has the result of an ask that flies also decide the requests that came since, if it decidesAll. These
// wait for the next ask for the same units, which is queued, and over then:
//
//	                     before   then
//	ask a                flying   flying, and over after this
//	requests 1 and 2     waits    the same: they wait for a
//	next, for the same   queued   over, and is never sent
//	requests 3 and 4     waits    the same, but they wait for a
//
// The result of a late ask decides nobody: much may have changed since the service was asked.
func (c *Client) decideQueued(a *ask, result *quota.AskResult) {
	next := c.asks.queuedFor[a.want]
	if a.state == flying && next != nil && len(next.waiters) > 0 && a.decidesAll(result) {
		c.asks.takeQueued(a, next)
	}
}

// decidesAll reports whether the result also decides the requests of a queued ask for the same units.
func (a *ask) decidesAll(result *quota.AskResult) bool {
	if result.Outcome != quota.Granted && result.Outcome != quota.Denied {
		return true // asking again would get nothing better
	}
	for i := range a.parts {
		p, g := &a.parts[i], grantOf(result, i)
		if p.CountsDenied() {
			return false // each request must have been asked for
		}
		if result.Outcome == quota.Granted && g != nil && !g.Denied && g.Units <= p.Wire.Waiting {
			return false // the ask's own requests need all of them
		}
	}
	return true // it denies, or has more units than its own requests need
}
