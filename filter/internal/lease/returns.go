package lease

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Units that nobody takes go back, so that other proxies can have them:
//
//	watch         remembers a grant of which units were put into a lease
//	CollectIdle   visits it at a tick, and has its units leave the lease and go back if their time is over, or if
//	              nobody has written the lease for idleNs
//	giveBack      puts units on the list due: these, those that no lease can keep, and those that a request leaves
//	AppendTo      has them leave with a message
//
// They go back on the stream that got them. Once that has ended, they cannot. Then units in a lease stay there until
// their time is over, because requests may still spend them. Those that are left by then are lost, and those in no
// lease are lost at once. Nobody visits the grants of an earlier configuration, so what is lost of them is not counted.

// Returns are the units of a worker's grants that go back.
type Returns struct {
	stream uint32      // that is open: only units of its grants can go back. 0 = none
	due    []dueReturn // to be sent, all of grants of this stream

	watched        []watchedGrant // which CollectIdle visits. Those whose units are spent leave them at the next visit
	nextVisitNs    int64          // when to visit the first of them; 0 = at the next tick
	shortestIdleNs int64          // the shortest time after which one is idle, 0 = none is left
}

// dueReturn is a return to be sent, of units that the source's rule had leased.
type dueReturn struct {
	source *Source
	quota.Return
}

// watchedGrant is a grant with units in a key's lease.
type watchedGrant struct {
	lease   leaseAt
	grant   leased.GrantID
	visitNs int64 // when to visit it next
}

const (
	// maxReturns is how many returns one message has at most, each of one grant.
	maxReturns = 1024
	// maxWatched is how many grants with units in leases one worker remembers. A grant beyond these is not visited: what
	// requests leave of it is lost when its time is over. Nobody finds out how much that is, so it counts as one unit.
	maxWatched = 4096
	// maxVisitNs is the longest time until a worker visits a grant again.
	maxVisitNs = 1_000_000_000
)

// StreamOpened says which stream is open.
func (rets *Returns) StreamOpened(number uint32) { rets.stream = number }

// StreamEnded says that none is open any more. What should have gone back on it is lost.
func (rets *Returns) StreamEnded() {
	rets.stream = 0
	for i := range rets.due {
		rets.due[i].source.noteLost(rets.due[i].Units)
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

// IdleNs is the shortest time after which units in a lease are idle, 0 if there are none.
func (rets *Returns) IdleNs() int64 { return rets.shortestIdleNs }

// canGoBack reports whether units of the grant can go back: on the stream that got them, by the grant's number.
func (rets *Returns) canGoBack(grant leased.GrantID) bool {
	return grant.Stream == rets.stream && grant.Number > 0
}

// giveBack has units go back if they can. Else they are lost.
func (rets *Returns) giveBack(src *Source, left leased.GrantLeft) {
	switch {
	case left.Units == 0:
	case rets.canGoBack(left.GrantID):
		rets.due = append(rets.due, dueReturn{src, quota.Return{Grant: left.Number, Units: left.Units}})
	default:
		src.noteLost(left.Units)
	}
}

// noteLost counts leased units that nobody can spend or return any more.
func (src *Source) noteLost(units uint32) { src.rule.Metrics.LeasedUnitsLost += uint64(units) }

// watch has CollectIdle visit a grant whose units were put into the lease now.
func (rets *Returns) watch(at *leaseAt, grant leased.GrantID, now int64) {
	if len(rets.watched) >= maxWatched {
		at.source.noteLost(1)
		return
	}
	visitNs := min(now+at.source.idleNs, grant.EndNs, rets.latestVisitNs(now))
	rets.watched = append(rets.watched, watchedGrant{*at, grant, visitNs})
	rets.noteVisit(&rets.watched[len(rets.watched)-1])
}

// watchAgain is watch for a grant whose units a refund has put back into the lease: a visit between taking and
// refunding them may have found nothing of it left. It leaves a grant of another worker to it, because this one could
// only lose its units.
func (rets *Returns) watchAgain(at *leaseAt, grant leased.GrantID, now int64) {
	isWatched := func(wg watchedGrant) bool { return wg.grant == grant }
	if rets.canGoBack(grant) && !slices.ContainsFunc(rets.watched, isWatched) {
		rets.watch(at, grant, now)
	}
}

// noteVisit has nextVisitNs and shortestIdleNs count a grant that is on the list.
func (rets *Returns) noteVisit(wg *watchedGrant) {
	rets.nextVisitNs = min(rets.nextVisitNs, wg.visitNs)
	if idle := wg.lease.source.idleNs; rets.shortestIdleNs == 0 || idle < rets.shortestIdleNs {
		rets.shortestIdleNs = idle
	}
}

// latestVisitNs is when a grant is visited again at the latest: within maxVisitNs, or within 50 ms if the list is half
// full.
func (rets *Returns) latestVisitNs(now int64) int64 {
	if len(rets.watched) >= maxWatched/2 {
		return now + maxVisitNs/20
	}
	return now + maxVisitNs
}

// CollectIdle has units go back that nobody takes any more, of at most maxReturns grants.
func (w *Worker) CollectIdle(now int64) {
	rets := &w.Returns
	if len(rets.watched) == 0 || now < rets.nextVisitNs {
		return
	}
	wallNs, mostDue := w.clock.Now(), len(rets.due)+maxReturns
	latestNs := rets.latestVisitNs(now)
	rets.nextVisitNs, rets.shortestIdleNs = math.MaxInt64, 0
	stay := 0 // how many, at the front of the list
	for i := range rets.watched {
		wg := &rets.watched[i]
		if now >= wg.visitNs && len(rets.due) < mostDue {
			left := leased.GrantLeft{GrantID: wg.grant}
			left.Units, wg.visitNs = wg.collect(wallNs, now, latestNs, rets.canGoBack(wg.grant))
			rets.giveBack(wg.lease.source, left)
			if wg.visitNs == 0 {
				continue
			}
		}
		rets.noteVisit(wg)
		rets.watched[stay] = *wg
		stay++
	}
	rets.watched = rets.watched[:stay]
}

// collect takes the grant's units out of its lease, if they have to leave it. visitNs is when to visit the grant again,
// 0 if nothing of it is left in the lease.
func (wg *watchedGrant) collect(wallNs, now, latestNs int64, canGoBack bool) (units uint32, visitNs int64) {
	visitNs = now + maxVisitNs // if the proxy's store fails
	written := wg.lease.change(wallNs, now, func(e *state.LeaseEntry) bool {
		units, visitNs = wg.takeFrom(e, now, latestNs, canGoBack)
		return units > 0
	})
	if units > 0 && written == nil {
		return 0, now + maxVisitNs
	}
	return units, visitNs
}

// takeFrom takes the grant's units out of a lease if their time is over, or if they are idle and can go back. It
// returns what collect does.
func (wg *watchedGrant) takeFrom(
	e *state.LeaseEntry, now, latestNs int64, canGoBack bool,
) (units uint32, visitNs int64) {
	units = e.LeftOf(wg.grant)
	if units == 0 {
		return 0, 0
	}
	leaveNs := wg.grant.EndNs
	if canGoBack {
		leaveNs = min(leaveNs, e.WrittenNs+wg.lease.source.idleNs)
	}
	if now < leaveNs {
		return 0, min(leaveNs, latestNs)
	}
	e.TakeBack(wg.grant)
	return units, 0
}
