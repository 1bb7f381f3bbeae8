package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// A grant's units have three ways out: a request spends them, the key's lease keeps them for later
// requests, or the service gets them back.
//
//	    give: to requests that waited         Source.Take
//	g.Units -----------> Subject.Quota.Grant -------------> spent
//	   ^                          |
//	   +--- release: not taken ---+
//	   |
//	   | writeLease: the rest, by record and by the last release
//	   +-----------> the key's lease, if later requests may spend it: see returns.go
//	   +-----------> quota.Return, if not
//
// The service takes units of a grant back once. So once some units are in the lease, what requests
// leave of the same grant is added to them, and all of it goes back together.
//
// Units to be held are only given. The worker reports what it has not given as not held.

// grant is the service's answer to one part of an ask.
type grant struct {
	quota.Grant // its Units are those that nobody has
	part        *Part
	stream      uint32
	cameNs      int64 // by the monotonic clock, as endNs
	endNs       int64
	standings   []state.LeaseStanding
	takers      int    // requests that have units of it and are not decided
	given       uint32 // units that requests have got
}

// receive takes the result of an ask, for the requests that waited for it and for those that come.
func (c *Client) receive(result *quota.AskResult) {
	a := c.sent.take(result.ID)
	if a == nil {
		return
	}
	if result.Outcome == quota.Unknown {
		c.defineAgain(a)
		return
	}
	waiters := a.waiters
	if next := c.queue.byWant[a.want]; next != nil && len(next.waiters) > 0 && a.decidesMore(result) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	if result.Outcome == quota.Busy {
		for _, req := range waiters {
			req.setWait(decide.Rejected)
		}
		a.giveUpReports()
	} else {
		for i := range a.parts {
			c.distribute(a, i, result, waiters)
		}
	}
	for _, req := range waiters {
		req.ask = nil
	}
	c.ready = append(c.ready, waiters...)
}

// defineAgain queues the ask again, with its definitions: the service lacks one of them.
func (c *Client) defineAgain(a *ask) {
	for i := range a.parts {
		delete(c.stream.defined, a.parts[i].Wire.Definition)
	}
	c.requeue(a)
	a.giveUpReports() // the service refuses reports now: renew looks after them
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
		if p.countsDenied() {
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

// distribute gives the waiters what the result has for one part, in their order, and records
// the rest.
func (c *Client) distribute(a *ask, i int, result *quota.AskResult, waiters []*Waiter) {
	g := newGrant(a, i, result, c.worker.clock.Monotonic())
	holds := g.part.account != nil
	if holds && !c.worker.accounts.noteGrant(g, a, i) {
		g.Failed = true
	}
	g.date(a.sentNs)
	for _, req := range waiters {
		for j := range req.parts { // a request has one part of each definition
			if p := &req.parts[j]; p.grant == nil && p.Wire.Definition == g.part.Wire.Definition {
				g.give(p)
			}
		}
	}
	if !holds { // what is held has no lease: the account's next report says what is left
		c.record(g)
	}
}

// newGrant reads the grant of a part of an ask.
func newGrant(a *ask, i int, result *quota.AskResult, now int64) *grant {
	g := &grant{part: &a.parts[i], stream: a.stream, cameNs: now}
	switch result.Outcome {
	case quota.Granted, quota.Denied, quota.Unavailable:
		g.Failed = i >= len(result.Grants) // an older service is Unavailable so
	default: // what a newer service answers
		g.Failed = true
	}
	if !g.Failed {
		g.Grant = result.Grants[i]
	}
	return g
}

// date makes instants of the grant's durations, within what can be, whatever a broken service
// answers.
func (g *grant) date(sentNs int64) {
	mostNs := quota.MostWaitNs(g.part.definition.Windows)
	g.endNs = sentNs + min(max(g.ValidNs, 0), state.MaxLeaseNs)
	if g.WaitNs != limit.Never {
		g.WaitNs = min(max(g.WaitNs, 0), mostNs)
	}
	for _, st := range g.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		g.standings = append(g.standings, state.LeaseStanding{Used: st.Used, ResetNs: g.cameNs + resetNs})
	}
}

// give gives the grant to a request that has waited, as far as it suffices.
func (g *grant) give(p *Part) {
	switch {
	case g.Failed:
		return
	case g.Denied && p.Wire.Cost >= g.part.Wire.Cost:
		g.writeTo(p, 0)
	case !g.Denied && g.Units >= p.Wire.Cost && g.cameNs < g.endNs:
		g.writeTo(p, p.Wire.Cost)
		g.takers++
		g.Units -= p.Wire.Cost
		g.given = limit.AddSaturating(g.given, p.Wire.Cost)
		if p.account != nil {
			p.account.Given += p.Wire.Cost
		}
	}
}

// writeTo writes the grant to the subject that waits for it.
func (g *grant) writeTo(p *Part, units uint32) {
	p.grant = g
	s := p.subject
	s.Quota.Grant = decide.Grant{
		Received: true, Units: units, EndNs: g.endNs, Denied: g.Denied, HeldBack: g.Held, WaitNs: g.WaitNs,
		NowNs: g.cameNs, Standings: g.standings,
	}
	if p.account != nil {
		s.Account = p.account
	}
}

// record writes a new grant into the key's lease: what it says, and the units for which nobody
// has waited. If these may not be kept, they go back to the service: at once if no request has
// got units of the grant, otherwise with what the requests leave.
func (c *Client) record(g *grant) {
	rest := g.Units
	if g.takers > 0 && !g.Leased {
		rest = 0
	}
	g.Units -= rest
	c.giveBack(g.writeLease(rest, true), g.stream)
}

// release takes what a decided request leaves. The last request's call puts the units into the
// key's lease. It returns what goes back to the service instead.
func (g *grant) release(units uint32) (back quota.Return) {
	g.Units += units
	g.takers--
	if g.takers > 0 || g.Units == 0 {
		return back
	}
	return g.writeLease(g.Units, false)
}

// writeLease changes the key's lease and writes it, again if another worker writes first. If the
// units are not in the lease after all, they go back to the service.
func (g *grant) writeLease(units uint32, isNew bool) (back quota.Return) {
	src := g.part.source.(*Source)
	w := src.worker
	e, wallNs := &w.entry, w.clock.Now()
	for try := range state.MaxRetries {
		now := w.clock.Monotonic()
		if src.table.ReadKey(e, g.part.leaseKey, wallNs, now) != state.OK {
			break
		}
		if e.Ahead && try == 0 { // once: the worker may have stood still since it read its clock
			continue
		}
		lost, put := g.change(&e.Lease, units, isNew, now)
		written := src.write(e)
		if written == decide.Raced {
			continue
		}
		if written == decide.Taken && put {
			src.rule.Metrics.LeaseLost += uint64(lost)
			w.watch(returnable{src, g.part.leaseKey, g.stream, g.Number, src.lookAt(now, now, g.endNs)})
			return back
		}
		break
	}
	return quota.Return{Grant: g.Number, Units: units}
}

// change changes a key's lease by the grant. A new grant is noted first, and its units are put
// there unless its time is over. It returns what put does.
func (g *grant) change(l *state.Lease, units uint32, isNew bool, now int64) (lost uint32, ok bool) {
	if isNew {
		g.note(l, now)
		if now >= g.endNs {
			return 0, false
		}
	}
	return g.put(l, units, now)
}

// note writes into the lease what the service said of the key.
func (g *grant) note(l *state.Lease, now int64) {
	src := g.part.source.(*Source)
	l.AskedNs, l.SilentNs = 0, 0
	if g.Failed {
		l.SilentNs = now + silenceNs
		return
	}
	l.Uncharged -= min(l.Uncharged, g.part.Wire.Spent)
	l.Standings = append(l.Standings[:0], g.standings...)
	l.Rate.Spend(now, src.refill.RateNs, g.given)
	if g.Denied && src.leases {
		g.noteDenial(l, now)
	}
}

// noteDenial keeps a denial in the lease, so that nobody asks again before the wait is over.
func (g *grant) noteDenial(l *state.Lease, now int64) {
	cost := g.part.Wire.Cost
	if l.DeniedNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	wait := int64(silenceNs)
	if g.WaitNs != limit.Never {
		l.PassNs = g.cameNs + g.WaitNs
		wait = min(wait, g.WaitNs)
	}
	l.DeniedNs = now + wait
}

// put puts units into the lease, if they may be spent later. Units that requests leave join those
// of the same grant, and go back with them. ok says that the units are there; lost is how many units
// of an ended stream made room for them: these cannot go back.
func (g *grant) put(l *state.Lease, units uint32, now int64) (lost uint32, ok bool) {
	if units == 0 || !g.Leased || g.Failed || g.Denied {
		return 0, false
	}
	if l.DeniedCost <= units {
		l.DeniedNs = 0
	}
	return l.Put(now, state.GrantLeft{Stream: g.stream, Number: g.Number, Units: units, EndNs: g.endNs})
}
