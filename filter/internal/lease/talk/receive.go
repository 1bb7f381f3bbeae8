package talk

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
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
	a := c.asks.end(result.ID)
	switch {
	case a == nil: // it has come more than lateNs after the ask
	case result.Outcome == quota.Unknown:
		c.defineAgain(a)
	case a.isLook():
		c.tellLooks(a, result, now)
	case result.Outcome == quota.Busy:
		c.reject(a, result)
	default: // Granted, Denied or Unavailable, or what a newer service answers
		c.handOut(a, result, now)
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
		req.stopWaiting(allot.Rejected)
		c.waitlist.makeReady(req)
	}
}

// handOut ends an ask for units: they are handed out, and the requests that it decides go on.
func (c *Client) handOut(a *ask, result *quota.AskResult, now int64) {
	waiters := c.takeDecided(a, result)
	trip := lease.Trip{Stream: a.stream, SentNs: a.sentNs, CameNs: now}
	for i := range a.parts {
		lease.HandOut(&a.parts[i], grantOf(result, i), trip, waiters)
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
	default:
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

// decidesMore reports whether the result also decides the requests of a queued ask for the same units.
func (a *ask) decidesMore(result *quota.AskResult) bool {
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

// tellLooks writes how the keys stand into the looks that wait for it.
func (c *Client) tellLooks(a *ask, result *quota.AskResult, now int64) {
	for _, req := range a.waiters {
		for i := range a.parts {
			req.Look.Note(&a.parts[i], grantOf(result, i), now)
		}
		req.awaits = without(req.awaits, a)
		if len(req.awaits) == 0 {
			c.waitlist.makeReady(req)
		}
	}
}
