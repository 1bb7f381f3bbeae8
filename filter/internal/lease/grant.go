package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// grant is the service's answer to one part of an ask. Requests that waited for it get their
// cost; the rest goes to the table of leases. What requests have got and do not take goes back
// when the last of them is decided: the service takes units of a grant back once.
type grant struct {
	quota.Grant // its Units are those that nobody has
	part        *Part
	stream      uint32
	nowNs       int64 // when it came
	endNs       int64
	standings   []state.LeaseStanding
	takers      int    // requests that have units of it and are not decided
	given       uint32 // units that requests have got
}

// receive takes the result of an ask, for the requests that waited for it and for those that come.
func (c *Client) receive(result *quota.AskResult) {
	a := c.takeSent(result.ID)
	if a == nil {
		return
	}
	waiters := a.waiters
	if next := c.queued[a.key]; next != nil && len(next.waiters) > 0 && a.decidesMore(result) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	switch result.Outcome {
	case quota.Unknown:
		for i := range a.parts {
			delete(c.stream.defined, a.parts[i].Definition)
		}
		c.requeue(a)
		a.unreport() // the service refuses reports now: renew looks after them
		return
	case quota.Busy:
		for _, w := range waiters {
			w.setWait(decide.Rejected)
		}
		a.unreport()
	default:
		for i := range a.parts {
			c.distribute(a, i, result, waiters)
		}
	}
	for _, w := range waiters {
		w.ask = nil
	}
	c.ready = append(c.ready, waiters...)
}

// decidesMore reports whether a result decides more than the ask's own requests: it has units
// beyond their need, or later asks cannot get a better one, nor do they count.
func (a *ask) decidesMore(result *quota.AskResult) bool {
	if result.Outcome != quota.Granted && result.Outcome != quota.Denied {
		return result.Outcome != quota.Unknown
	}
	for i := range a.parts {
		p := &a.parts[i]
		if p.countsDenied() {
			return false
		}
		if result.Outcome == quota.Denied || i >= len(result.Grants) {
			continue
		}
		if g := &result.Grants[i]; !g.Denied && g.Units <= p.Waiting {
			return false
		}
	}
	return true
}

// countsDenied reports whether an ask for it counts even if it is denied.
func (p *Part) countsDenied() bool { return p.definition.CountDenied }

// distribute gives the waiters what the result has for one part, in their order. The rest of
// a lease goes to the table; the rest of what would be held is reported as not held.
func (c *Client) distribute(a *ask, i int, result *quota.AskResult, waiters []*Waiter) {
	g := newGrant(a, i, result, c.worker.clock.Monotonic())
	holds := g.part.account != nil
	if holds {
		c.worker.accounts.noteGrant(g, a, i)
	}
	g.date(a.sentNs)
	for _, w := range waiters {
		for j := range w.parts {
			if p := &w.parts[j]; p.grant == nil && p.Definition == g.part.Definition {
				g.give(p)
			}
		}
	}
	if !holds {
		c.record(g)
	}
}

// newGrant reads the grant of a part of an ask.
func newGrant(a *ask, i int, result *quota.AskResult, nowNs int64) *grant {
	g := &grant{part: &a.parts[i], stream: a.stream, nowNs: nowNs}
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
		g.standings = append(g.standings, state.LeaseStanding{Used: st.Used, ResetNs: g.nowNs + resetNs})
	}
}

// give gives the grant to a request that has waited, as far as it suffices.
func (g *grant) give(p *Part) {
	switch {
	case g.Failed:
		return
	case g.Denied && p.Cost >= g.part.Cost:
		g.writeTo(p, 0)
	case !g.Denied && g.Units >= p.Cost && g.nowNs < g.endNs:
		g.writeTo(p, p.Cost)
		g.takers++
		g.Units -= p.Cost
		g.given = limit.AddSaturating(g.given, p.Cost)
		if p.account != nil {
			p.account.Given += p.Cost
		}
	}
}

// writeTo writes the grant to the subject that waits for it.
func (g *grant) writeTo(p *Part, units uint32) {
	p.grant = g
	s := p.subject
	s.Quota.Grant = decide.Grant{
		Received: true, Units: units, EndNs: g.endNs, Denied: g.Denied, HeldBack: g.Held, WaitNs: g.WaitNs,
		NowNs: g.nowNs, Standings: g.standings,
	}
	if p.account != nil {
		s.Account = p.account
	}
}

// record writes a new grant into the key's record: what it says, and the units for which nobody
// has waited. If these may not be kept, they go back to the service: at once if no request has
// taken units of the grant, otherwise with what the requests leave.
func (c *Client) record(g *grant) {
	if g.takers > 0 && !g.Leased {
		g.update(0, (*grant).noteAnswer)
		return
	}
	rest := g.Units
	g.Units = 0
	back := g.update(rest, (*grant).noteAndPut)
	c.giveBack(back, g.stream)
}

// release takes what a decided request leaves. The last request's call puts the units into the
// key's record. It returns what goes back to the service instead.
func (g *grant) release(units uint32) (back quota.Return) {
	g.Units += units
	g.takers--
	if g.takers > 0 || g.Units == 0 {
		return back
	}
	return g.update(g.Units, (*grant).put)
}

// change changes a key's record by a grant. It gets the units that the record may take. It is a
// method expression, because a closure would be allocated for each ask.
type change func(g *grant, l *state.Lease, units uint32, now int64) (put bool, lost uint32)

// noteAndPut does both to the record of a new grant, unless its time is over.
func (g *grant) noteAndPut(l *state.Lease, units uint32, now int64) (put bool, lost uint32) {
	g.noteAnswer(l, units, now)
	if now >= g.endNs {
		return false, 0
	}
	return g.put(l, units, now)
}

// update has change change the key's record and writes it, again if another worker writes first.
// change says whether it has put the units into the record, and how many others it dropped for
// them. If the units are not in the record after all, they go back to the service.
func (g *grant) update(units uint32, change change) quota.Return {
	c := g.part.source.(*Source)
	w := c.worker
	e, wall := &w.entry, w.clock.Now()
	for try := range state.MaxRetries {
		now := w.clock.Monotonic()
		if c.table.ReadAt(e, g.part.place, wall, now) != state.OK {
			break
		}
		if e.Newer && try == 0 { // by a newer time it can be read, unless it is of another epoch
			continue
		}
		put, lost := change(g, &e.Lease, units, now)
		written := c.write(e)
		if written == decide.Raced {
			continue
		}
		if written == decide.Taken && put {
			c.rule.Metrics.LeaseLost += uint64(lost)
			w.watch(leased{c, g.part.place, g.stream, g.Number, c.lookAt(now, now, g.endNs)})
			return quota.Return{}
		}
		break
	}
	return quota.Return{Grant: g.Number, Units: units}
}

// noteAnswer writes into the record what the service said of the key. It puts no units there.
func (g *grant) noteAnswer(l *state.Lease, _ uint32, now int64) (put bool, lost uint32) {
	c := g.part.source.(*Source)
	l.AskedNs, l.SilentNs = 0, 0
	if g.Failed {
		l.SilentNs = now + silenceNs
		return false, 0
	}
	l.Uncharged -= min(l.Uncharged, g.part.Spent)
	l.Standings = append(l.Standings[:0], g.standings...)
	l.Rate.Spend(now, c.refill.RateNs, g.given)
	if g.Denied && c.leases {
		g.noteDenial(l, now)
	}
	return false, 0
}

// noteDenial keeps a denial in the record, so that nobody asks again before the wait is over.
func (g *grant) noteDenial(l *state.Lease, now int64) {
	cost := g.part.Cost
	if l.DeniedNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	wait := int64(silenceNs)
	if g.WaitNs != limit.Never {
		l.PassNs = g.nowNs + g.WaitNs
		wait = min(wait, g.WaitNs)
	}
	l.DeniedNs = now + wait
}

// put puts units into the record, if they may be spent later. Units that requests leave join
// those of the same grant, and go back with them. lost is how many units of an ended stream it
// drops to make room: they cannot go back.
func (g *grant) put(l *state.Lease, units uint32, now int64) (put bool, lost uint32) {
	if units == 0 || !g.Leased || g.Failed || g.Denied {
		return false, 0
	}
	if l.DeniedCost <= units {
		l.DeniedNs = 0
	}
	lost, put = l.Put(now, state.GrantLeft{Stream: g.stream, Number: g.Number, Units: units, EndNs: g.endNs})
	return put, lost
}
