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
//	   |   ^                      |
//	   |   +- reclaim: not taken -+
//	   |
//	   | keepRest, once the waiters have theirs: the rest
//	   | release, by the last of them:           what they have left
//	   |
//	   +-----------> the key's lease, if later requests may spend it: see returns.go
//	   +-----------> quota.Return, if not
//
// The service takes units of a grant back once. So once some units are in the lease, what requests
// leave of the same grant is added to them, and all of it goes back together.
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. keepRest puts 18 into the lease.
// The client of the second request has left, so release puts its unit there too: the lease has 19
// units of grant 7. Later requests spend 4 of them, and then none comes for IdleNs. So takeIdle takes
// the other 15 out of the lease, and they go back as quota.Return{Grant: 7, Units: 15}.
//
// Units to be held are only given. The worker reports what it has not given as not held.

// grant is the service's answer to one part of an ask. Its Units are those that nobody has.
type grant struct {
	quota.Grant
	part      *part
	stream    uint32
	cameNs    int64 // by the monotonic clock, as endNs, blockNs and those of standings
	endNs     int64
	standings []state.LeaseStanding

	// Of a denial; see block.go.
	blockNs     int64 // until when the key is blocked, 0 = it is not
	tellBlocked bool  // the next request that gets the denial is told Blocked

	takers    int    // requests that have units of it and are not decided
	everGiven uint32 // units that requests have got, whatever they do with them: the key's rate counts them
}

// endAsk ends an ask by its result.
func (c *Client) endAsk(result *quota.AskResult, now int64) {
	a := c.sent.take(result.ID)
	switch {
	case a == nil: // it has come more than lateNs after the ask
	case result.Outcome == quota.Unknown:
		c.defineAgain(a)
	case a.isLook():
		c.endLooks(a, result, now)
	default:
		c.endWaits(a, result, now)
	}
}

// endWaits ends an ask for units, for the requests that have waited for it and for those to come. The
// result may also decide requests that came since, which have joined the next ask for these units.
func (c *Client) endWaits(a *ask, result *quota.AskResult, now int64) {
	waiters := a.waiters
	if next := c.queue.byWant[a.want]; next != nil && len(next.waiters) > 0 && a.decidesMore(result) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	if result.Outcome == quota.Busy {
		for _, req := range waiters {
			req.setWait(decide.Rejected)
		}
		a.giveUpReports() // the service takes no more asks now: renew lists the accounts again
	} else {
		for i := range a.parts {
			c.distribute(newGrant(a, i, result, now), a, i, waiters)
		}
	}
	for _, req := range waiters {
		c.waitlist.makeReady(req)
	}
}

// defineAgain queues the ask again, with its definitions: the service lacks one of them.
func (c *Client) defineAgain(a *ask) {
	for i := range a.parts {
		delete(c.stream.defined, a.parts[i].Wire.Definition)
	}
	c.requeue(a)
	a.giveUpReports() // the service refuses reports now: renew lists the accounts again
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

// distribute gives the waiters the grant of part i of the ask, in their order, and puts the rest into
// the key's lease. What is held has no lease: the account's next report says what is left.
func (c *Client) distribute(g *grant, a *ask, i int, waiters []*Waiter) {
	if !g.part.holds() {
		g.giveAll(waiters)
		c.keepRest(g)
		return
	}
	if c.worker.accounts.endReport(g, a, i) {
		g.giveAll(waiters)
	}
	g.part.account.noteBlock(g)
}

// newGrant reads the grant of part i of the ask.
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
	g.date(a.sentNs)
	g.readBlock()
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

// giveAll gives the grant to requests that have waited for it, one after the other.
func (g *grant) giveAll(waiters []*Waiter) {
	for _, req := range waiters {
		for i := range req.needs { // a request has one need of each definition
			if n := &req.needs[i]; n.grant == nil && n.Wire.Definition == g.part.Wire.Definition {
				g.give(n)
			}
		}
	}
}

// give gives the units that the request needs, if the grant has them, or the denial, if what was
// denied costs no more.
func (g *grant) give(n *Need) {
	cost := n.Wire.Cost
	switch {
	case g.Failed:
		return
	case g.Denied && cost >= g.part.Wire.Cost:
		g.deny(n)
	case !g.Denied && g.Units >= cost && g.cameNs < g.endNs:
		g.writeTo(n, cost)
		g.takers++
		g.Units -= cost
		g.everGiven = limit.AddSaturating(g.everGiven, cost)
		if n.holds() {
			n.account.Given += cost
		}
	}
}

// writeTo writes the grant to the subject that waits for it.
func (g *grant) writeTo(n *Need, units uint32) {
	n.grant = g
	n.subject.Quota.Grant = g.forSubject(units)
	if n.holds() {
		n.subject.Account = n.account
	}
}

// forSubject is the grant as a subject has it that gets so many units of it.
func (g *grant) forSubject(units uint32) decide.Grant {
	return decide.Grant{
		Received: true, Units: units, EndNs: g.endNs, Denied: g.Denied, HeldBack: g.HeldBack,
		Blocked: g.tellBlocked, WaitNs: g.WaitNs, NowNs: g.cameNs, Standings: g.standings,
	}
}

// reclaim takes from a request what it has got for a need and has not taken.
func (c *Client) reclaim(n *Need) {
	if n.grant == nil || n.grant.Denied {
		return
	}
	own := &n.subject.Quota.Grant
	units := own.Units
	own.Units = 0
	if n.holds() {
		n.account.Given -= units
		c.worker.accounts.list(n.account)
		return
	}
	c.release(n.grant, units)
}
