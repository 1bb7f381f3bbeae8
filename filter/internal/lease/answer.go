package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// answer is what the service has said for a part of an ask, with bounded times. It does not change.
type answer struct {
	part     *Part
	isUsable bool  // false: the grant has Failed, or Account.EndReport says that it gives nothing
	cameNs   int64 // when it came
	isLate   bool  // see Trip

	granted        leased.GrantUnits
	isLeased       bool              // what requests do not get of granted may stay in the key's lease
	reason         cluster.Reason    // why it denies, or NotDenied
	waitNs         int64             // of a denial, from cameNs on, or limit.Never
	standings      []leased.Standing // how the key's windows stand
	blockedUntilNs int64             // of a denial: until when the key is blocked, 0 = it is not
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
	IsLate         bool // it has taken longer than the timeout, so a later ask may have had its answer before
}

// newAnswer bounds what the service says of times by what can be, whatever a broken one answers, as standings and
// Account.EndReport do. Ends and resets become instants. WaitNs stays a duration, from when the grant came on. The
// service counts its durations from an instant between SentNs and CameNs. A lease counts from SentNs, so it never ends
// later than at the service. Windows count from CameNs, so they never reset sooner. Both are the safe side.
func newAnswer(p *Part, grant *quota.Grant, trip Trip, isUsable bool) answer {
	waitNs := grant.WaitNs
	if waitNs != limit.Never {
		waitNs = min(max(waitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	endNs := trip.SentNs + min(max(grant.ValidNs, 0), quota.MaxLeaseNs)
	a := answer{
		part: p, isUsable: isUsable, cameNs: trip.CameNs, isLate: trip.IsLate,
		granted: leased.GrantUnits{
			GrantID: leased.GrantID{Stream: trip.Stream, Number: grant.Number, EndNs: endNs}, Units: grant.Units,
		},
		isLeased: grant.Leased,
		reason:   cluster.ReasonOf(grant), waitNs: waitNs, standings: p.standings(grant, trip.CameNs),
	}
	a.blockedUntilNs = a.blockEnd()
	return a
}

// standings is how the windows of the part's key stand, by a grant that came at cameNs. They are bounded as newAnswer
// bounds times.
func (p *Part) standings(grant *quota.Grant, cameNs int64) (standings []leased.Standing) {
	mostNs := quota.MostWaitNs(p.Definition.Windows)
	for _, st := range grant.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		standings = append(standings, leased.Standing{Used: st.Used, ResetNs: cameNs + resetNs})
	}
	return standings
}

// denies reports whether the service has denied the ask.
func (a *answer) denies() bool { return a.reason != cluster.NotDenied }

// allotment is that of a request which is told this reason. It has no units yet.
func (a *answer) allotment(reason cluster.Reason) cluster.Allotment {
	return cluster.Allotment{Reason: reason, WaitNs: a.waitNs, Standings: a.standings}
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

// blockEnd is until when an answer that denies says that the key is blocked, 0 if it is not.
func (a *answer) blockEnd() int64 {
	block := a.part.Definition.Block()
	if block < 0 || block >= len(a.standings) || !a.denies() || a.standings[block].Used == 0 {
		return 0
	}
	return a.standings[block].ResetNs
}

// beginsBlock reports whether the ask has begun a block: the key is blocked, and was not before.
func (a *answer) beginsBlock() bool { return a.blockedUntilNs > 0 && a.reason != cluster.Blocked }

// remembersBlock reports whether the key is blocked, and stays so without further asks.
func (a *answer) remembersBlock() bool { return a.blockedUntilNs > 0 && !a.part.CountsDenied() }

// denial is how long the worker remembers what the service denies: until the wait or the block is over, and no longer
// than quota.MaxRememberNs.
func (a *answer) denial() leased.Denial {
	d := leased.Denial{UntilNs: a.cameNs + quota.MaxRememberNs, PassNs: limit.Never}
	if a.waitNs != limit.Never {
		d.PassNs = a.cameNs + a.waitNs
		d.UntilNs = min(d.UntilNs, d.PassNs) // after that the wait would be negative, and -1 is limit.Never
	}
	if a.remembersBlock() {
		d.UntilNs = min(d.UntilNs, a.blockedUntilNs)
	}
	return d
}
