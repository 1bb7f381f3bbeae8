package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// HandOut hands out what the service has granted for a part of an ask. The verdicts are those of the requests that have
// waited for the ask, in the order in which they came. The grant is nil if the service has none for the part.
//
// Units of a rule without holds go, in this order:
//
//	to                                     by           what is not spent there
//	the requests that have waited          give         giveBackUnused: goes back when the request is decided
//	the key's lease, for later requests    noteInLease  CollectIdle: goes back when it is idle
//	the service, if they cannot stay       noteInLease
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. Each gets one, and 18 are put into the lease. The
// client of the second request has left, so quota.Return{Grant: 7, Units: 1} is sent. Later requests take 4 units of
// the lease, and then none comes for idleNs: quota.Return{Grant: 7, Units: 14} is sent.
//
// Units of a rule that holds are in the key's account. Nothing goes back: what requests do not hold, the account's next
// report leaves out.
func HandOut(p *Part, grant *quota.Grant, trip Trip, verdicts []*decide.Verdict) {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	if p.Account == nil {
		h := newHandout(p, grant, trip, !grant.Failed)
		h.giveTo(verdicts)
		h.noteInLease()
		return
	}
	report := p.Wire.Report
	isUsable := p.Account.EndReport(report.Number, grant, trip.CameNs)
	h := newHandout(p, grant, trip, isUsable)
	h.giveTo(verdicts)
	h.noteInAccount(p.Account)
}

// handout is a grant while HandOut hands it out.
type handout struct {
	part     *Part             // for which it was granted
	grant    *quota.Grant      // as it came
	isUsable bool              // false: the service cannot reach the key, or the report has no answer. It gives nothing
	cameNs   int64             // when it came
	isLate   bool              // see Trip
	rest     leased.GrantUnits // what nobody has got yet
	stays    bool              // the rest, in the key's lease

	allotment      cluster.Allotment // of the next request, but for its units: deny changes it
	blockedUntilNs int64             // of a denial: until when the key is blocked, 0 = it is not
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
	IsLate         bool // it has taken longer than the timeout, so a later ask may have had its answer before
}

// newHandout bounds what the service says of times by what can be, whatever a broken one answers, as standings and
// Account.EndReport do. Ends and resets become instants. WaitNs stays a duration, from when the grant came on. The
// service counts its durations from an instant between SentNs and CameNs. A lease counts from SentNs, so it never ends
// later than at the service. Windows count from CameNs, so they never reset sooner. Both are the safe side.
func newHandout(p *Part, grant *quota.Grant, trip Trip, isUsable bool) *handout {
	waitNs := grant.WaitNs
	if waitNs != limit.Never {
		waitNs = min(max(waitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	endNs := trip.SentNs + min(max(grant.ValidNs, 0), quota.MaxLeaseNs)
	h := &handout{
		part: p, grant: grant, isUsable: isUsable, cameNs: trip.CameNs, isLate: trip.IsLate,
		allotment: cluster.Allotment{
			Reason: cluster.ReasonOf(grant), WaitNs: waitNs, Standings: p.standings(grant, trip.CameNs),
		},
		rest: leased.GrantUnits{
			GrantID: leased.GrantID{Stream: trip.Stream, Number: grant.Number, EndNs: endNs}, Units: grant.Units,
		},
	}
	h.blockedUntilNs = h.blockEnd()
	return h
}

// standings is how the windows of the part's key stand, by a grant that came at cameNs. They are bounded as newHandout
// bounds times.
func (p *Part) standings(grant *quota.Grant, cameNs int64) (standings []leased.Standing) {
	mostNs := quota.MostWaitNs(p.Definition.Windows)
	for _, st := range grant.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		standings = append(standings, leased.Standing{Used: st.Used, ResetNs: cameNs + resetNs})
	}
	return standings
}

// giveTo gives the subjects of verdicts for which the part was asked.
func (h *handout) giveTo(verdicts []*decide.Verdict) {
	for _, v := range verdicts {
		for _, s := range v.Subjects {
			if d := s.Cluster.AskedFor; d != nil && d.ID == h.part.Definition.ID { // no other rule has that number
				h.give(s)
			}
		}
	}
}

// give gives a subject the units that it needs, if nobody has got them, or the denial, if what was denied costs no
// more.
func (h *handout) give(s *decide.Subject) {
	switch {
	case !h.isUsable:
	case h.grant.Denied && s.Cost >= h.part.Wire.Cost:
		h.deny(s)
	case !h.grant.Denied && h.rest.Units >= s.Cost && h.cameNs < h.rest.EndNs:
		h.rest.Units -= s.Cost
		s.Cluster.Allotment = h.allotment
		s.Cluster.Allotment.GrantUnits = leased.GrantUnits{GrantID: h.rest.GrantID, Units: s.Cost}
	}
}

// noteInAccount drops what no request has got: the account has all that the service has granted. It remembers a block.
func (h *handout) noteInAccount(acc *account.Account) {
	if !h.isUsable { // also if it came late: the report was given up
		return
	}
	if h.rest.Units > 0 {
		acc.DropGiven(h.rest.Units)
	}
	if h.remembersBlock() {
		acc.RememberBlock(account.Block{Denial: h.denial(), Standings: h.allotment.Standings})
	}
}

// noteInLease writes the answer into the key's lease. What no request has got stays there, or goes back.
func (h *handout) noteInLease() {
	src := h.part.source
	at := src.leases.At(h.part.leaseKey)
	wallNs := src.worker.clock.Now()
	written := at.Change(wallNs, h.cameNs, h.writeInto) // a func literal would take TinyGo three allocations
	if written && h.stays {
		at.Watch(h.rest.GrantID, h.cameNs)
	} else {
		src.leases.GiveBack(h.rest)
	}
}

// writeInto writes the answer into the key's lease, and puts the rest there if that may stay.
func (h *handout) writeInto(e *state.LeaseEntry) bool {
	h.writeAnswer(&e.Lease, h.part.source, e.NowNs)
	mayStay := h.grant.Leased && h.isUsable && !h.grant.Denied && e.NowNs < h.rest.EndNs
	h.stays = mayStay && h.rest.Units > 0 && e.Put(h.rest)
	if h.stays {
		e.Allow(h.rest.Units)
	}
	return true
}

// writeAnswer writes into the source's lease what the service said of the key.
func (h *handout) writeAnswer(l *leased.Lease, src *LeaseSource, now int64) {
	l.Uncharged.EndClaim(h.part.Wire.Uncharged, h.isUsable)
	if h.isLate && len(l.Standings) > 0 { // a later ask may have said how the key stands by now
		return
	}
	l.RefillUntilNs, l.SilentUntilNs = 0, 0
	if !h.isUsable {
		l.SilentUntilNs = now + quota.MaxRememberNs
		return
	}
	given := h.grant.Units - h.rest.Units
	l.Standings = append(l.Standings[:0], h.allotment.Standings...)
	l.Rate.Add(now, src.refill.rateNs, given) // as takeLease does for what it takes
	switch {
	case h.remembersBlock():
		l.Block(h.denial())
	case h.grant.Denied && src.keeps:
		l.Deny(h.part.Wire.Cost, h.denial())
	}
}

// What a worker remembers of a denial, so that not each request asks:
//
//	the service denies               it remembers that            later requests are
//	a cost, of a rule that keeps     in the lease: Deny           Denied if they cost so much
//	units for later requests
//	all, as the key is blocked       in the lease: Block          Blocked
//	the same, of a rule that holds   in the account               Blocked
//	all else                         nowhere                      told what the service says to their own asks
//
// A block is not remembered if each denied ask changes what the key has counted. A rule with a block keeps no
// units, because package policy sets its lease to off: see fitsScope there.
//
// For example, a limit of 3 a minute with a block of 1 h:
//
//	0 s    Two requests wait for one ask, when none is left. It is denied, and the key was not Blocked before: the ask
//	       has begun the block. The first request is told Denied, and the rule counts a block. The second is told
//	       Blocked.
//	0.5 s  Another request is told Blocked, and nobody asks.
//	1.2 s  The next one asks. The service says that the key was Blocked before, so it is told Blocked. The worker
//	       remembers that for another second.

// blockEnd is until when a grant that denies says that the key is blocked, 0 if it is not.
func (h *handout) blockEnd() int64 {
	block := h.part.Definition.Block()
	if block < 0 || block >= len(h.allotment.Standings) || !h.grant.Denied || h.allotment.Standings[block].Used == 0 {
		return 0
	}
	return h.allotment.Standings[block].ResetNs
}

// deny tells a request that it is denied. If the ask has begun a block, the first request is told Denied, because its
// rule has begun the block, and the next ones are told Blocked.
func (h *handout) deny(s *decide.Subject) {
	s.Cluster.Allotment = h.allotment
	if h.blockedUntilNs > 0 && h.allotment.Reason != cluster.Blocked {
		s.Rule.Metrics.BlocksBegun++
		h.allotment.Reason = cluster.Blocked
	}
}

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (h *handout) remembersBlock() bool { return h.blockedUntilNs > 0 && !h.part.CountsDenied() }

// denial is how long the worker remembers what the grant denies: until the wait or the block is over, and no longer
// than quota.MaxRememberNs.
func (h *handout) denial() leased.Denial {
	d := leased.Denial{UntilNs: h.cameNs + quota.MaxRememberNs, PassNs: limit.Never}
	if h.allotment.WaitNs != limit.Never {
		d.PassNs = h.cameNs + h.allotment.WaitNs
		d.UntilNs = min(d.UntilNs, d.PassNs) // after that the wait would be negative, and -1 is limit.Never
	}
	if h.remembersBlock() {
		d.UntilNs = min(d.UntilNs, h.blockedUntilNs)
	}
	return d
}
