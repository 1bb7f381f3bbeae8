package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Three types have a grant's units, in four places:
//
//	type              lies in                   its Units
//	quota.Grant       the message               what the service has granted
//	leased.GrantLeft  handout.rest              what nobody has
//	allot.Allotment   Subject.Carried           what its request may take
//	leased.GrantLeft  the key's lease           what later requests may take
//
// The units of a rule that leases have three ways out: a request spends them, the key's lease keeps them for later
// requests, or the service gets them back.
//
//	  give: to requests that waited              Source.Take
//	h.rest ------------> Subject.Carried.Allotment -----------> spent
//	   |   ^                      |
//	   |   +---- Need.Reclaim ----+
//	   |            what is not taken
//	   |
//	   | keepRest, once the waiters have theirs: the rest
//	   | Reclaim, of the last of them: what they have left
//	   |
//	   +- putRest ----> the key's lease, if later requests may spend it
//	   +- giveBack ---> quota.Return, if not: see returns.go
//
// The service takes units of a grant back once. So what requests leave of a grant joins its other units, in the lease
// or here, and nothing of it goes back before the last request has left what it does not take. A request may have units
// of one rule for as long as it waits for those of another.
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. keepRest puts 18 into the lease. The client of
// the second request has left, so Reclaim puts its unit there too: the lease has 19 units of grant 7. Later requests
// spend 4 of them, and then none comes for idleNs. So CollectIdle takes the other 15 out of the lease, and they go back
// as quota.Return{Grant: 7, Units: 15}.
//
// The units of a rule that holds are counted in the key's account instead.

// HandOut hands out what the service has granted for a part of an ask: first to the requests that have waited for the
// ask, in the order in which they came, and then the rest. The grant is nil if the service has none for the part. Later
// each of the requests reclaims what it has not taken: see Need.Reclaim.
func HandOut[W interface{ Needs() []Need }](p *Part, grant *quota.Grant, trip Trip, waiters []W) {
	h := newHandout(p, grant, trip)
	if !p.Reporter.End(&h.grant, trip.CameNs) {
		h.failed = true
	}
	for _, w := range waiters {
		h.give(w.Needs())
	}
	h.keepRest()
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
}

// handout is a grant while its units are handed out, until each request that has got some has taken or left them.
type handout struct {
	grant     quota.Grant       // as it came, with a wait that is possible
	part      *Part             // for which it was granted
	trip      Trip              // of the ask
	standings []leased.Standing // how the key's windows stand

	rest   leased.GrantLeft // what nobody has
	failed bool             // it gives nothing: the service cannot reach the key, or its report was given up or lost

	// Of a rule that leases:
	takers int   // requests that have units and are not decided
	putNs  int64 // when units were put into the key's lease, and by now maybe spent; 0 = it has none of the grant

	// Of a denial:
	blockNs      int64 // until when the key is blocked, 0 = it is not
	hasToldBlock bool  // a request was told that the ask has begun the block
}

func newHandout(p *Part, grant *quota.Grant, trip Trip) *handout {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	h := &handout{
		grant: *grant, part: p, trip: trip, standings: p.standings(grant, trip.CameNs), failed: grant.Failed,
		rest: leased.GrantLeft{Units: grant.Units, GrantID: leased.GrantID{
			Stream: trip.Stream, Number: grant.Number,
			EndNs: trip.SentNs + min(max(grant.ValidNs, 0), quota.MaxLeaseNs),
		}},
	}
	if grant.WaitNs != limit.Never {
		h.grant.WaitNs = min(max(grant.WaitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	h.readBlock()
	return h
}

// standings is how the windows of the part's key stand, by a grant that came at cameNs.
//
// It and newHandout bound what the service says of times by what can be, whatever a broken one answers. Ends and resets
// become instants. WaitNs stays a duration, from when the grant came on. The service counts its durations from an
// instant between SentNs and CameNs. A lease counts from SentNs, so it never ends later than at the service. Windows
// count from CameNs, so they never reset sooner. Both are the safe side.
func (p *Part) standings(grant *quota.Grant, cameNs int64) (standings []leased.Standing) {
	mostNs := quota.MostWaitNs(p.Definition.Windows)
	for _, st := range grant.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		standings = append(standings, leased.Standing{Used: st.Used, ResetNs: cameNs + resetNs})
	}
	return standings
}

// give gives a request that has waited the units that it needs, if the handout has them, or the denial, if what was
// denied costs no more.
func (h *handout) give(needs []Need) {
	if h.failed {
		return
	}
	for i := range needs { // a request has one need of each definition
		n := &needs[i]
		if n.handout != nil || n.definition != h.part.Wire.Definition {
			continue
		}
		switch cost := n.subject.Cost; {
		case h.grant.Denied && cost >= h.part.Wire.Cost:
			h.deny(n)
		case !h.grant.Denied && h.rest.Units >= cost && h.trip.CameNs < h.rest.EndNs:
			h.writeTo(n, cost)
			h.rest.Units -= cost
			h.noteGiven(n, cost)
		}
	}
}

// writeTo writes the grant to the subject that waits for it, with so many units.
func (h *handout) writeTo(n *Need, units uint32) {
	n.handout = h
	n.subject.Carried.Allotment = h.allotment(units)
}

// allotment is what a subject has of the grant that gets so many units of it.
func (h *handout) allotment(units uint32) allot.Allotment {
	return allot.Allotment{
		Units: units, EndNs: h.rest.EndNs, Denied: h.grant.Denied, HeldBack: h.grant.HeldBack,
		Blocked: h.grant.Blocked, WaitNs: h.grant.WaitNs, Standings: h.standings,
	}
}

// Reclaim takes back what the request has got for the need and has not taken. It is called once the request is decided,
// or asks for the need anew.
func (n *Need) Reclaim() {
	if n.handout == nil || n.handout.grant.Denied {
		return
	}
	own := &n.subject.Carried.Allotment
	n.handout.takeBack(own.Units)
	*own = allot.Allotment{}
}

// All above is the same for each rule. Three methods are not, because the units of a rule that holds are counted in the
// key's account:
//
//	method     a rule that leases                          a rule that holds
//	noteGiven  has one taker more                          the account has given the units
//	keepRest   writes the answer and the rest of the       the account remembers a block. The rest need not go back: the
//	           units into the key's lease                  next report does not count it as held
//	takeBack   has one taker less. Once none is left,      the account has not given the units, after all
//	           the units go into the key's lease, or back

func (h *handout) noteGiven(n *Need, units uint32) {
	if acc := h.part.Reporter.Account(); acc != nil {
		acc.AddGiven(units)
		n.subject.Carried.Account = acc
		return
	}
	h.takers++
}

func (h *handout) keepRest() {
	if acc := h.part.Reporter.Account(); acc != nil {
		if h.remembersBlock() {
			b := account.Block{Standings: h.standings, WaitNs: h.grant.WaitNs, CameNs: h.trip.CameNs}
			acc.RememberBlock(b, h.blockNs)
		}
		return
	}
	h.changeLease(true)
	h.giveBackIfLeft()
}

func (h *handout) takeBack(units uint32) {
	if acc := h.part.Reporter.Account(); acc != nil {
		acc.DropGiven(units)
		return
	}
	h.rest.Units += units
	h.takers--
	if h.takers == 0 && h.rest.Units > 0 && h.mayStay() {
		h.changeLease(false)
	}
	h.giveBackIfLeft()
}

// giveBackIfLeft has the grant go back once no taker is left:
//
//	putNs  rest  because                                              then
//	0      none  requests have taken all units, or there were none    nothing
//	0      some  they may not stay, the lease has no place for them,  the rest goes back at once
//	             or the proxy's store has failed
//	set    none  keepRest or takeBack has put them into the lease     CollectIdle has those go back that are idle
//	set    some  keepRest has put units there. Then the store has     so do those in the lease. The rest is lost: a grant
//	             failed, when takeBack was to put others there        goes back once
func (h *handout) giveBackIfLeft() {
	src := h.part.lease.source
	switch {
	case h.takers > 0:
		return
	case h.putNs > 0:
		src.noteLost(h.rest.Units)
		src.worker.Returns.watch(h)
	default:
		src.worker.Returns.giveBack(src, h.rest.GrantID, h.rest.Units)
	}
	h.rest.Units = 0
}

// mayStay reports whether a lease may keep units of the grant, for later requests.
func (h *handout) mayStay() bool { return h.grant.Leased && !h.failed && !h.grant.Denied }

// changeLease writes the answer into the lease of the handout's key, if that is new there, and puts the rest into it:
//
//	the write is  the lease                               what was put there
//	OK            has the change                          is the lease's, and no rest any more
//	a Mismatch    was written by another worker: it is    is the rest still, and put there again
//	              read anew, and changed again
//	else          is as it was: what the service has      is the rest still, and goes back
//	              said of the key is lost
func (h *handout) changeLease(isNew bool) {
	of := &h.part.lease
	e := &of.source.worker.entry
	for range state.MaxRetries {
		if !of.read(e) {
			return
		}
		if isNew {
			h.writeAnswer(&e.Lease, e.NowNs)
		}
		isPut := h.putRest(e)
		switch of.source.write(e) {
		case state.OK:
			h.putNs = 0
			if isPut {
				h.putNs = e.NowNs
				h.rest.Units = 0
			}
			return
		case state.Mismatch:
		default:
			return
		}
	}
}

// putRest puts the rest into the lease, all of it or nothing. Units whose time is over are not put there, unless the
// lease has others of the grant: all of it goes back together.
func (h *handout) putRest(e *state.LeaseEntry) (isPut bool) {
	if h.rest.Units == 0 || !h.mayStay() || e.NowNs >= h.rest.EndNs && h.putNs == 0 {
		return false
	}
	if !e.Put(h.rest) {
		return false
	}
	if e.NowNs < h.rest.EndNs {
		e.Allow(h.rest.Units) // no blocked key: a rule with a block leases nothing
	}
	return true
}

// writeAnswer writes into the lease what the service said of the key.
func (h *handout) writeAnswer(l *leased.Lease, now int64) {
	l.Uncharged.Answer(h.part.Wire.Spent, !h.failed)
	l.SilentUntilNs = 0
	if h.failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	src, given := h.part.lease.source, h.grant.Units-h.rest.Units // none has come back yet: see HandOut
	l.Standings = append(l.Standings[:0], h.standings...)
	l.Rate.Add(now, src.refill.rateNs, given) // as takeLease does for what it takes
	if h.remembersBlock() || h.grant.Denied && src.keeps {
		h.writeDenial(l, now)
	}
}

// The service blocks a key, and a worker remembers that for account.MaxRememberNs. A rule with a block leases
// nothing, because package policy sets its lease to off: see fitsScope there. So each request asks for itself, unless
// its worker knows of the block:
//
//	                           denied, not blocked:         blocked:                    blocked:
//	                           the rule leases              the rule leases nothing     the rule holds
//	the service says it        quota.Grant.Denied           readBlock: blockNs          readBlock: blockNs
//	requests that asked hear   deny: all Denied             deny: one Denied,           deny: one Denied,
//	                                                        others Blocked              others Blocked
//	the worker remembers it    writeDenial: in the key's    writeDenial: in the key's   keepRest: by
//	                           lease, by Lease.Deny         lease, by Lease.Block       Account.RememberBlock
//	later requests hear        Source.Check, by             Source.Check, by            HoldSource.Check, by
//	                           Lease.Denies: Denied         Lease.Blocks: Blocked       RecallBlock: Blocked
//
// Else nothing is remembered, and each request asks: if a rule that leases nothing or holds is denied without a block,
// or if each denied ask changes what the key has counted.
//
// For example, a limit of 3 a minute with a block of 1 h:
//
//	0 s    Two requests wait for one ask, when none is left. It is denied, and the key was not Blocked before: the ask
//	       has begun the block. The first request is told Denied, and the rule counts a block. The second is told
//	       Blocked.
//	0.5 s  Another request is told Blocked, and nobody asks.
//	1.2 s  The next one asks. The service says that the key was Blocked before, so it is told Blocked. The worker
//	       remembers that for another second.

// readBlock finds out until when the key is blocked.
func (h *handout) readBlock() {
	block := h.part.Definition.Block()
	if block < 0 || block >= len(h.standings) || !h.grant.Denied {
		return
	}
	if st := &h.standings[block]; st.Used > 0 {
		h.blockNs = st.ResetNs
	}
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and all others are told Blocked.
func (h *handout) deny(n *Need) {
	h.writeTo(n, 0)
	switch {
	case h.blockNs == 0 || h.grant.Blocked: // all are told what the service says
	case h.hasToldBlock:
		n.subject.Carried.Allotment.Blocked = true
	default:
		n.subject.Rule.Metrics.BlocksBegun++
		h.hasToldBlock = true
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (h *handout) remembersBlock() bool { return h.blockNs > 0 && !h.part.CountsDenied() }

// writeDenial writes the denial into the lease, of what was asked for or of a blocked key. Nobody asks again until the
// wait or the block is over, and no longer than account.MaxRememberNs.
func (h *handout) writeDenial(l *leased.Lease, now int64) {
	d := leased.Denial{UntilNs: now + account.MaxRememberNs, PassNs: limit.Never}
	if h.grant.WaitNs != limit.Never {
		d.PassNs = h.trip.CameNs + h.grant.WaitNs
		d.UntilNs = min(d.UntilNs, d.PassNs) // after that the wait would be negative, and -1 is limit.Never
	}
	if !h.remembersBlock() {
		l.Deny(h.part.Wire.Cost, d, now)
		return
	}
	d.UntilNs = min(d.UntilNs, h.blockNs)
	l.Block(d, now)
}
