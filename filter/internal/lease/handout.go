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
// ask, in the order in which they came. The part's keeper keeps the rest, and later what requests have not taken. The
// grant is nil if the service has none for the part.
func HandOut[W interface{ Needs() []Need }](p *Part, grant *quota.Grant, trip Trip, waiters []W) {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	isReported := p.Reporter.End(grant, trip.CameNs) // first: the account takes over what is granted, then gives it
	h := newHandout(p, grant, trip, isReported && !grant.Failed)
	for _, w := range waiters {
		if n := h.needOf(w.Needs()); n != nil {
			h.answer(n)
		}
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
	part    *Part            // for which it was granted
	keeper  keeper           // of the part
	grant   *quota.Grant     // as it came
	isValid bool             // false: the service cannot reach the key, or has not heard the report. It gives nothing
	cameNs  int64            // when it came
	told    allot.Allotment  // what requests are told, each with its own Units
	rest    leased.GrantLeft // what nobody has got yet

	// Of a denial:
	blockNs      int64 // until when the key is blocked, 0 = it is not
	hasToldBlock bool  // a request was told that the ask has begun the block
}

func newHandout(p *Part, grant *quota.Grant, trip Trip, isValid bool) *handout {
	waitNs := grant.WaitNs
	if waitNs != limit.Never {
		waitNs = min(max(waitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	endNs := trip.SentNs + min(max(grant.ValidNs, 0), quota.MaxLeaseNs)
	h := &handout{
		part: p, keeper: p.keeper(), grant: grant, isValid: isValid, cameNs: trip.CameNs,
		told: allot.Allotment{
			EndNs: endNs, Denial: allot.DenialOf(grant), WaitNs: waitNs,
			Standings: p.standings(grant, trip.CameNs),
		},
		rest: leased.GrantLeft{
			GrantID: leased.GrantID{Stream: trip.Stream, Number: grant.Number, EndNs: endNs}, Units: grant.Units,
		},
	}
	h.blockNs = h.blockedUntilNs()
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

// needOf is what a request needs of the part, nil if it needs nothing of it, or has got that from another one. A
// request has one need of each definition.
func (h *handout) needOf(needs []Need) *Need {
	for i := range needs {
		if n := &needs[i]; n.definition == h.part.Wire.Definition && n.keeper == nil {
			return n
		}
	}
	return nil
}

// answer gives a request the units that it needs, if nobody has got them, or the denial, if what was denied costs no
// more.
func (h *handout) answer(n *Need) {
	switch s, cost := n.subject, n.subject.Cost; {
	case !h.isValid:
	case h.grant.Denied && cost >= h.part.Wire.Cost:
		h.deny(s)
	case !h.grant.Denied && h.rest.Units >= cost && h.cameNs < h.rest.EndNs:
		h.rest.Units -= cost
		s.Carried.Allotment = h.told
		s.Carried.Allotment.Units = cost
		n.keeper, n.grant = h.keeper, h.rest.GrantID
		n.keeper.noteGiven(s)
	}
}

// What a worker remembers of a denial, so that not each request asks:
//
//	the service denies               it remembers that            later requests are
//	a cost, of a rule that leases    in the lease: Deny           Denied if they cost so much
//	all, as the key is blocked       in the lease: Block          Blocked
//	the same, of a rule that holds   in the account               Blocked
//	all else                         nowhere                      told what the service says to their own asks
//
// A block is not remembered if each denied ask changes what the key has counted. A rule with a block leases nothing,
// because package policy sets its lease to off: see fitsScope there.
//
// For example, a limit of 3 a minute with a block of 1 h:
//
//	0 s    Two requests wait for one ask, when none is left. It is denied, and the key was not Blocked before: the ask
//	       has begun the block. The first request is told Denied, and the rule counts a block. The second is told
//	       Blocked.
//	0.5 s  Another request is told Blocked, and nobody asks.
//	1.2 s  The next one asks. The service says that the key was Blocked before, so it is told Blocked. The worker
//	       remembers that for another second.

// blockedUntilNs is until when a grant that denies says that the key is blocked, 0 if it is not.
func (h *handout) blockedUntilNs() int64 {
	block := h.part.Definition.Block()
	if block < 0 || block >= len(h.told.Standings) || !h.grant.Denied || h.told.Standings[block].Used == 0 {
		return 0
	}
	return h.told.Standings[block].ResetNs
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and the next ones are told Blocked.
func (h *handout) deny(s *decide.Subject) {
	s.Carried.Allotment = h.told
	switch {
	case h.blockNs == 0 || h.told.Denial == allot.Blocked: // the ask has begun none
	case h.hasToldBlock:
		s.Carried.Allotment.Denial = allot.Blocked
	default:
		s.Rule.Metrics.BlocksBegun++
		h.hasToldBlock = true
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (h *handout) remembersBlock() bool { return h.blockNs > 0 && !h.part.CountsDenied() }

// denial is how long the worker remembers what the grant denies: until the wait or the block is over, and no longer
// than account.MaxRememberNs.
func (h *handout) denial() leased.Denial {
	d := leased.Denial{UntilNs: h.cameNs + account.MaxRememberNs, PassNs: limit.Never}
	if h.told.WaitNs != limit.Never {
		d.PassNs = h.cameNs + h.told.WaitNs
		d.UntilNs = min(d.UntilNs, d.PassNs) // after that the wait would be negative, and -1 is limit.Never
	}
	if h.remembersBlock() {
		d.UntilNs = min(d.UntilNs, h.blockNs)
	}
	return d
}
