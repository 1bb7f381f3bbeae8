package grants

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Units that nobody takes go back, so that other proxies can have them:
//
//	At.Watch         remembers a grant of which units were put into a lease
//	CollectIdle      visits it at a tick. It takes the units out of the lease, and gives them back, if their time is
//	                 over, or if nobody has written the lease for idleNs
//	Leases.GiveBack  puts units on the list due: those that no lease can keep, and those that a request leaves
//	AppendTo         has the list leave with a message
//
// They go back on the stream that got them. Once that has ended, they cannot. Then units in a lease stay there until
// their time is over, because requests may still spend them. Those that are left by then are lost, and those in no
// lease are lost at once. Nobody visits the grants of an earlier configuration, so what is lost of them counts only if
// another grant takes their place.

// Returns are the units of a worker's grants that go back.
type Returns struct {
	stream uint32      // that is open: only units of its grants can go back. 0 = none
	due    []dueReturn // to be sent, all of grants of this stream

	// watched are the grants that CollectIdle visits, those first that it has not visited for longest. Those whose units
	// are spent leave them at the next visit.
	watched     []watchedGrant
	nextVisitNs int64 // when to visit the first of them; 0 = at the next tick
	isBehind    bool  // the last round of visits has left grants that were due
	nextRoundNs int64 // if so: when the next round may begin
	watchedNew  int   // grants since the last round, also those for which there was no room
	idleNs      int64 // the shortest of the worker's Leases, which New has noted; 0 = there are none

	// Memory:
	entry   state.LeaseEntry // for At.Change
	visited []watchedGrant   // for CollectIdle
}

// dueReturn is a return to be sent, of units that the rule had leased.
type dueReturn struct {
	leases *Leases
	quota.Return
}

// watchedGrant is a grant with units in a key's lease.
type watchedGrant struct {
	at      At
	grant   leased.GrantID
	visitNs int64 // when to visit it next
}

const (
	// maxReturns is how many returns one message has at most, each of one grant.
	maxReturns = 1024
	// maxWatched is how many grants with units in leases one worker remembers. A grant beyond these is not visited: what
	// requests leave of it is lost when its time is over. Nobody finds out how much that is, so it counts as one unit.
	maxWatched = 4096
	// maxVisitNs is after which time a grant is due to be visited again. If the list is half full, roundNs is, so that
	// grants which are spent soon leave it.
	maxVisitNs = 1_000_000_000
	// maxVisits is how many grants are visited in a round, beside visitsForNew for each that has come since the last
	// round. A visit reads a lease: without a bound, a worker with thousands of grants would do little else.
	maxVisits    = 128
	visitsForNew = 8
	// roundNs is the time from a round that leaves some grants to the next one. Ticks may come a little early: then it
	// is restNs at least.
	roundNs = 50_000_000
	restNs  = roundNs * 4 / 5
)

// A full list is visited once before a grant that has ended counts as stranded: this is negative, and does not compile,
// if it takes longer.
const _ = uint64(leased.StrandedNs - maxWatched/maxVisits*roundNs)

// StreamOpened says which stream is open.
func (rets *Returns) StreamOpened(number uint32) { rets.stream = number }

// StreamEnded says that none is open any more. What should have gone back on it is lost.
func (rets *Returns) StreamEnded() {
	rets.stream = 0
	for i := range rets.due {
		rets.due[i].leases.noteLost(rets.due[i].Units)
	}
	rets.due = rets.due[:0]
}

// Count is how many returns the next message has.
func (rets *Returns) Count() int { return min(len(rets.due), maxReturns) }

// AppendTo adds these to the end of a message. They stay due until it is sent.
func (rets *Returns) AppendTo(message []quota.Return) []quota.Return {
	for i := range rets.due[:rets.Count()] {
		message = append(message, rets.due[i].Return)
	}
	return message
}

// Sent says that a message has been sent with the first n of them.
func (rets *Returns) Sent(n int) { rets.due = rets.due[n:] }

// PeriodNs is how soon CollectIdle must be called again, or what is due be sent; 0 if there is neither.
func (rets *Returns) PeriodNs() int64 {
	switch {
	case rets.isBehind || len(rets.due) > 0:
		return roundNs
	case len(rets.watched) == 0:
		return 0
	}
	return max(rets.idleNs, roundNs)
}

// canGoBack reports whether units of the grant can go back: on the stream that got them, by the grant's number.
func (rets *Returns) canGoBack(grant leased.GrantID) bool {
	return grant.Stream == rets.stream && grant.Number > 0
}

// giveBack gives units back if they can go back. Else they are lost.
func (rets *Returns) giveBack(l *Leases, left leased.GrantUnits) {
	switch {
	case left.Units == 0:
	case rets.canGoBack(left.GrantID):
		rets.due = append(rets.due, dueReturn{l, quota.Return{Grant: left.Number, Units: left.Units}})
	default:
		l.noteLost(left.Units)
	}
}

// Watch has CollectIdle visit a grant whose units were put into the lease now.
func (at At) Watch(grant leased.GrantID, now int64) {
	rets := at.leases.returns
	rets.watchedNew++
	if len(rets.watched) >= maxWatched {
		at.leases.noteLost(1)
		return
	}
	visitNs := min(now+at.leases.idleNs, grant.EndNs, rets.latestVisitNs(now))
	rets.watched = append(rets.watched, watchedGrant{at, grant, visitNs})
	rets.nextVisitNs = min(rets.nextVisitNs, visitNs)
}

// WatchAgain is Watch for a grant whose units a refund has put back into the lease: a visit between taking and
// refunding them may have found nothing of it left. It leaves a grant of another worker to it, because this one could
// only lose its units. If that has found nothing left meanwhile, nobody counts what is lost.
func (at At) WatchAgain(grant leased.GrantID, now int64) {
	rets := at.leases.returns
	isWatched := func(wg watchedGrant) bool { return wg.grant == grant }
	if rets.canGoBack(grant) && !slices.ContainsFunc(rets.watched, isWatched) {
		at.Watch(grant, now)
	}
}

// latestVisitNs is when a grant is due to be visited again at the latest.
func (rets *Returns) latestVisitNs(now int64) int64 {
	if len(rets.watched) >= maxWatched/2 {
		return now + roundNs
	}
	return now + maxVisitNs
}

// AreDue reports whether CollectIdle has a grant to visit.
func (rets *Returns) AreDue(now int64) bool {
	mustRest := rets.isBehind && now < rets.nextRoundNs
	return len(rets.watched) > 0 && now >= rets.nextVisitNs && !mustRest
}

// CollectIdle makes a round of visits. Grants that are due and have to wait come first in the next round.
func (rets *Returns) CollectIdle(wallNs, now int64) {
	rets.visited = rets.visited[:0]
	most := maxVisits + visitsForNew*rets.watchedNew
	rets.isBehind, rets.watchedNew = false, 0
	stay, visits := 0, 0
	for i := range rets.watched {
		wg := &rets.watched[i]
		isDue := now >= wg.visitNs
		if isDue && visits < most {
			visits++
			if !rets.visit(wg, wallNs, now) {
				rets.visited = append(rets.visited, *wg)
			}
			continue
		}
		rets.isBehind = rets.isBehind || isDue
		rets.watched[stay] = *wg
		stay++
	}
	rets.watched = append(rets.watched[:stay], rets.visited...)
	rets.nextRoundNs = now + restNs
	rets.nextVisitNs = math.MaxInt64
	for i := range rets.watched {
		rets.nextVisitNs = min(rets.nextVisitNs, rets.watched[i].visitNs)
	}
}

// visit takes the grant's units out of its lease and gives them back, if it is time: see leaveNs. It reports whether
// nothing of the grant is left in the lease. Else it says when to visit the grant again.
func (rets *Returns) visit(wg *watchedGrant, wallNs, now int64) (isOver bool) {
	left := leased.GrantUnits{GrantID: wg.grant}
	wg.visitNs = now + maxVisitNs // if the proxy's store fails
	takenOut := wg.at.Change(wallNs, now, func(e *state.LeaseEntry) bool {
		left.Units = e.LeftOf(wg.grant)
		isOver = left.Units == 0
		leaveNs := rets.leaveNs(wg, e)
		if isOver || now < leaveNs {
			wg.visitNs = min(leaveNs, rets.latestVisitNs(now))
			return false
		}
		e.TakeOut(wg.grant)
		e.KeepTime() // other grants of the lease stay idle
		return true
	})
	if takenOut {
		rets.giveBack(wg.at.leases, left)
	}
	return isOver || takenOut
}

// leaveNs is when the grant's units must leave its lease: when their time is over, or sooner if they can go back and
// are idle by then.
func (rets *Returns) leaveNs(wg *watchedGrant, e *state.LeaseEntry) int64 {
	if !rets.canGoBack(wg.grant) {
		return wg.grant.EndNs
	}
	return min(wg.grant.EndNs, e.WrittenNs+wg.at.leases.idleNs)
}
