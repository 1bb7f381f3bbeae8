package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// HandOut hands out what the service has granted for a part of an ask: first to the requests that have waited for the
// ask, in the order in which they came, and then the rest to its keeper. The grant is nil if the service has none for
// the part. Later each of the requests reclaims what it has not taken: see Need.Reclaim.
func HandOut[W interface{ Needs() []Need }](p *Part, grant *quota.Grant, trip Trip, waiters []W) {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	mayGive := p.Reporter.End(grant, trip.CameNs) // before give: the account takes over what is granted, then gives it
	h := newHandout(p, grant, trip, !mayGive)
	for _, w := range waiters {
		h.give(w.Needs())
	}
	h.keeper.keepRest(h)
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
}

// handout is a grant while HandOut hands it out.
type handout struct {
	part   *Part            // for which it was granted
	grant  *quota.Grant     // as it came
	failed bool             // it gives nothing: the service cannot reach the key, or its report was given up or lost
	cameNs int64            // when it came
	told   allot.Allotment  // what requests are told: each of them with its own Units
	rest   leased.GrantLeft // what nobody has got yet
	keeper keeper           // of all that no request takes
	leases leaseKeeper      // the keeper, if the rule leases; here, because one allocation does for both

	// Of a denial:
	blockNs      int64 // until when the key is blocked, 0 = it is not
	hasToldBlock bool  // a request was told that the ask has begun the block
}

// newHandout is a grant that is to be handed out. If its report is lost, it gives nothing.
func newHandout(p *Part, grant *quota.Grant, trip Trip, reportIsLost bool) *handout {
	waitNs := grant.WaitNs
	if waitNs != limit.Never {
		waitNs = min(max(waitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	endNs := trip.SentNs + min(max(grant.ValidNs, 0), quota.MaxLeaseNs)
	h := &handout{
		part: p, grant: grant, cameNs: trip.CameNs, failed: grant.Failed || reportIsLost,
		told: allot.Allotment{
			EndNs: endNs, Denied: grant.Denied, HeldBack: grant.HeldBack, Blocked: grant.Blocked, WaitNs: waitNs,
			Standings: p.standings(grant, trip.CameNs),
		},
		rest: leased.GrantLeft{
			GrantID: leased.GrantID{Stream: trip.Stream, Number: grant.Number, EndNs: endNs}, Units: grant.Units,
		},
	}
	h.keeper = h.newKeeper()
	h.readBlock()
	return h
}

// standings is how the windows of the part's key stand, by a grant that came at cameNs.
//
// It, newHandout and Reporter.End bound what the service says of times by what can be, whatever a broken one answers.
// Ends and resets become instants. WaitNs stays a duration, from when the grant came on. The service counts its
// durations from an instant between SentNs and CameNs. A lease counts from SentNs, so it never ends later than at the
// service. Windows count from CameNs, so they never reset sooner. Both are the safe side.
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
		if n.keeper != nil || n.definition != h.part.Wire.Definition {
			continue
		}
		switch s, cost := n.subject, n.subject.Cost; {
		case h.grant.Denied && cost >= h.part.Wire.Cost:
			h.deny(s)
		case !h.grant.Denied && h.rest.Units >= cost && h.cameNs < h.rest.EndNs:
			h.rest.Units -= cost
			h.tell(s, cost)
			n.keeper = h.keeper
			n.keeper.noteGiven(s, cost)
		}
	}
}

// tell tells a subject that has waited what the service says, and that it may take so many units.
func (h *handout) tell(s *decide.Subject, units uint32) {
	s.Carried.Allotment = h.told
	s.Carried.Allotment.Units = units
}

// mayStay reports whether a lease may keep units of the grant, for later requests.
func (h *handout) mayStay() bool { return h.grant.Leased && !h.failed && !h.grant.Denied }

// writeAnswer writes into the source's lease what the service said of the key.
func (h *handout) writeAnswer(l *leased.Lease, src *Source, now int64) {
	l.Uncharged.Answer(h.part.Wire.Spent, !h.failed)
	l.SilentUntilNs = 0
	if h.failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	given := h.grant.Units - h.rest.Units
	l.Standings = append(l.Standings[:0], h.told.Standings...)
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
//	the worker remembers it    writeDenial: in the key's    writeDenial: in the key's   accountKeeper: by
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
	if block < 0 || block >= len(h.told.Standings) || !h.grant.Denied {
		return
	}
	if st := &h.told.Standings[block]; st.Used > 0 {
		h.blockNs = st.ResetNs
	}
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and all others are told Blocked.
func (h *handout) deny(s *decide.Subject) {
	h.tell(s, 0)
	switch {
	case h.blockNs == 0 || h.grant.Blocked: // all are told what the service says
	case h.hasToldBlock:
		s.Carried.Allotment.Blocked = true
	default:
		s.Rule.Metrics.BlocksBegun++
		h.hasToldBlock = true
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (h *handout) remembersBlock() bool { return h.blockNs > 0 && !h.part.CountsDenied() }

// writeDenial writes the denial into the lease, of what was asked for or of a blocked key. Nobody asks again until the
// wait or the block is over, and no longer than account.MaxRememberNs.
func (h *handout) writeDenial(l *leased.Lease, now int64) {
	d := leased.Denial{UntilNs: now + account.MaxRememberNs, PassNs: limit.Never}
	if h.told.WaitNs != limit.Never {
		d.PassNs = h.cameNs + h.told.WaitNs
		d.UntilNs = min(d.UntilNs, d.PassNs) // after that the wait would be negative, and -1 is limit.Never
	}
	if !h.remembersBlock() {
		l.Deny(h.part.Wire.Cost, d, now)
		return
	}
	d.UntilNs = min(d.UntilNs, h.blockNs)
	l.Block(d, now)
}
