package talk

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
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
	c.stream.noteHeard()
	c.watchdog.noteAnswer()
	c.worker.Service.NoteAnswer()
	c.worker.SetProxies(c.inMessage.Proxies)
	for i := range c.inMessage.Results {
		c.endAsk(&c.inMessage.Results[i], now)
	}
	return nil
}

// endAsk ends an ask by its result.
func (c *Client) endAsk(result *quota.AskResult, now int64) {
	a := c.asks.end(result.ID)
	switch {
	case a == nil: // it has come more than lateNs after the ask, or it answers a probe
	case result.Outcome == quota.Unknown:
		c.defineAgain(a)
	case a.isLook():
		c.endLooks(a, result, now)
	case result.Outcome == quota.Busy:
		c.reject(a, result)
	default:
		c.endWaits(a, result, now)
	}
}

// defineAgain queues the ask again, with its definitions: the service lacks one of them.
func (c *Client) defineAgain(a *ask) {
	for i := range a.parts {
		delete(c.stream.defined, a.parts[i].Wire.Definition)
	}
	a.giveUpReports() // the service refuses reports now
	c.asks.requeue(a)
}

// reject has the requests wait no longer: the service takes no more asks now.
func (c *Client) reject(a *ask, result *quota.AskResult) {
	waiters := c.takeDecided(a, result)
	a.giveUpReports()
	for _, req := range waiters {
		req.setWait(decide.Rejected)
		c.waitlist.makeReady(req)
	}
}

// endWaits ends an ask for units: it gives them to the requests that it decides, in the order in which they came, and
// then keeps the rest.
func (c *Client) endWaits(a *ask, result *quota.AskResult, now int64) {
	waiters := c.takeDecided(a, result)
	trip := lease.Trip{Stream: a.stream, SentNs: a.sentNs, CameNs: now}
	for i := range a.parts {
		h := lease.NewHandout(&a.parts[i], grantOf(result, i), trip)
		h.EndReport()
		for _, req := range waiters {
			h.Give(req.needs)
		}
		h.KeepRest()
	}
	for _, req := range waiters {
		c.waitlist.makeReady(req)
	}
}

// grantOf is the grant for part i of the ask, nil if the result has none.
func grantOf(result *quota.AskResult, i int) *quota.Grant {
	switch result.Outcome {
	case quota.Granted, quota.Denied, quota.Unavailable:
		if i < len(result.Grants) { // an older service has none if it is Unavailable
			return &result.Grants[i]
		}
	default: // what a newer service answers
	}
	return nil
}

// takeDecided returns the requests that the result of an ask decides: those that have waited for it and, if the result
// decidesMore, those that came since. These wait for the next ask for the same units, which is over then:
//
//	                     before   then
//	ask a                flying   over: Receive has ended it
//	requests 1 and 2     asking   ready
//	next, for the same   queued   over, and is never sent: unqueue
//	requests 3 and 4     asking   ready
//
// The reports of next are left alone: they are of the accounts of a, and the end of a's reports finds out when these
// are reported next.
func (c *Client) takeDecided(a *ask, result *quota.AskResult) []*Waiter {
	next := c.asks.queued[a.want]
	if next == nil || len(next.waiters) == 0 || !a.decidesMore(result) {
		return a.waiters
	}
	c.asks.unqueue(next)
	return append(a.waiters, next.waiters...)
}

// decidesMore reports whether the result also decides the requests of a queued ask for the same
// units: it has more units than the ask's own requests need, or asking again would get nothing
// better. If the rule counts denied requests, each request must have been asked for.
func (a *ask) decidesMore(result *quota.AskResult) bool {
	if result.Outcome != quota.Granted && result.Outcome != quota.Denied {
		return true
	}
	for i := range a.parts {
		p := &a.parts[i]
		if p.CountsDenied() {
			return false
		}
		if result.Outcome == quota.Denied || i >= len(result.Grants) {
			continue
		}
		if g := &result.Grants[i]; !g.Denied && g.Units <= p.Wire.Waiting {
			return false
		}
	}
	return true
}

// endLooks writes how the keys stand into the looks that wait for it.
func (c *Client) endLooks(a *ask, result *quota.AskResult, now int64) {
	for _, req := range a.waiters {
		for i := range a.parts {
			req.Look.Note(&a.parts[i], grantOf(result, i), now)
		}
		req.asks = without(req.asks, a)
		if !req.isAsking() {
			c.waitlist.makeReady(req)
		}
	}
}
