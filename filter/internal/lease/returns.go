package lease

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Units that nobody takes go back, so that other proxies can have them:
//
//	returnToService  has units go back at once that cannot be kept
//	watch            remembers a grant whose units are in a lease
//	CollectIdle      visits it at a tick, and takes its units out of the lease if their time is over, or if nobody has
//	                 written the lease for idleNs
//	AppendTo         has them leave with a message on the stream that got them; once that has ended, they cannot

// Returns are the units of a worker's grants that go back.
type Returns struct {
	stream uint32         // that is open: only units of its grants can go back. 0 = none
	due    []quota.Return // to be sent

	leased         []leasedGrant // which CollectIdle visits. Those whose units are spent leave them at the next visit
	nextVisitNs    int64         // when to visit the first of them; 0 = at the next tick
	shortestIdleNs int64         // the shortest time after which one is idle, 0 = none is left
}

// leasedGrant is a grant with units in a key's lease.
type leasedGrant struct {
	source  *Source
	key     state.LeaseKey
	stream  uint32
	number  uint32 // of the grant
	visitNs int64  // when to visit it next
}

const (
	// maxReturns is how many returns one message has at most, each of one grant.
	maxReturns = 1024
	// maxLeased is how many grants with units in leases one worker remembers.
	maxLeased = 4096
	// maxVisitNs is the longest time until a worker visits a grant again.
	maxVisitNs = 1_000_000_000
)

// StreamOpened says which stream is open.
func (rets *Returns) StreamOpened(number uint32) { rets.stream = number }

// StreamEnded drops what should have gone back on the stream.
func (rets *Returns) StreamEnded() {
	rets.stream = 0
	rets.due = rets.due[:0]
}

// Count is how many returns the next message has.
func (rets *Returns) Count() int { return min(len(rets.due), maxReturns) }

// AppendTo moves these to the end of a message.
func (rets *Returns) AppendTo(message []quota.Return) []quota.Return {
	n := rets.Count()
	message = append(message, rets.due[:n]...)
	rets.due = rets.due[n:]
	return message
}

// IdleNs is the shortest time after which units in a lease are idle, 0 if there are none.
func (rets *Returns) IdleNs() int64 { return rets.shortestIdleNs }

// returnToService has the units of a handout that nobody has go back, on the stream that got them or not at all.
func (rets *Returns) returnToService(h *Handout) {
	if h.grant.Number > 0 && h.units > 0 && h.trip.Stream == rets.stream {
		rets.due = append(rets.due, quota.Return{Grant: h.grant.Number, Units: h.units})
	}
	h.units = 0
}

// watch has CollectIdle visit a grant whose units were put into the lease at writtenNs.
func (rets *Returns) watch(k *leaseKeeper, h *Handout, writtenNs int64) {
	src := k.source
	if len(rets.leased) >= maxLeased {
		src.rule.Metrics.LeasedUnitsLost++ // counted as one: what is left is not known yet
		return
	}
	visitNs := src.visitNs(writtenNs, h.endNs, rets.latestVisitNs(writtenNs))
	rets.leased = append(rets.leased, leasedGrant{src, k.key, h.trip.Stream, h.grant.Number, visitNs})
	rets.noteVisit(&rets.leased[len(rets.leased)-1])
}

// noteVisit has nextVisitNs and shortestIdleNs count a grant that is on the list.
func (rets *Returns) noteVisit(lg *leasedGrant) {
	rets.nextVisitNs = min(rets.nextVisitNs, lg.visitNs)
	if idle := lg.source.idleNs; rets.shortestIdleNs == 0 || idle < rets.shortestIdleNs {
		rets.shortestIdleNs = idle
	}
}

// latestVisitNs is when a grant is visited again at the latest: within maxVisitNs, or within 50 ms if the list is half
// full.
func (rets *Returns) latestVisitNs(now int64) int64 {
	if len(rets.leased) >= maxLeased/2 {
		return now + maxVisitNs/20
	}
	return now + maxVisitNs
}

// visitNs is when to visit units next that were written last at writtenNs: when they may be idle, or when their lease
// ends, and no later than latestNs.
func (src *Source) visitNs(writtenNs, endNs, latestNs int64) int64 {
	return min(writtenNs+src.idleNs, endNs, latestNs)
}

// CollectIdle has units go back that the open stream got and nobody takes any more, of at most maxReturns grants.
// It reads the clock once for all leases that it visits: each read of the clock takes time, and they may be many.
func (w *Worker) CollectIdle() {
	rets := &w.Returns
	if len(rets.leased) == 0 {
		return
	}
	now := w.clock.Monotonic()
	if now < rets.nextVisitNs {
		return
	}
	wallNs, mostDue := w.clock.Now(), len(rets.due)+maxReturns
	latestNs := rets.latestVisitNs(now)
	rets.nextVisitNs, rets.shortestIdleNs = math.MaxInt64, 0
	stay := 0 // how many, at the front of the list
	for i := range rets.leased {
		lg := &rets.leased[i]
		if lg.stream != rets.stream {
			continue // its stream has ended: the units stay counted
		}
		if now >= lg.visitNs && len(rets.due) < mostDue {
			units, stays := lg.take(&w.entry, wallNs, now, latestNs)
			if units > 0 {
				rets.due = append(rets.due, quota.Return{Grant: lg.number, Units: units})
			}
			if !stays {
				continue
			}
		}
		rets.noteVisit(lg)
		rets.leased[stay] = *lg
		stay++
	}
	rets.leased = rets.leased[:stay]
}

// take takes the grant's units out of the lease if they are idle. If they stay, it notes when to visit them again, by
// latestNs if nothing fails.
func (lg *leasedGrant) take(e *state.LeaseEntry, wallNs, now, latestNs int64) (units uint32, stays bool) {
	src := lg.source
	lg.visitNs = now + maxVisitNs
	for range state.MaxRetries {
		if src.table.ReadHashed(e, lg.key, wallNs, now) != state.OK {
			return 0, true
		}
		left := lg.find(&e.Lease)
		if left == nil {
			return 0, e.FromFuture // no reread: a later tick can read it
		}
		if now < left.EndNs && now-e.WrittenNs < src.idleNs {
			lg.visitNs = src.visitNs(e.WrittenNs, left.EndNs, latestNs)
			return 0, true
		}
		units, left.Units = left.Units, 0
		switch src.table.Write(e) { // not src.write: the record exists, so nothing is replaced
		case state.OK:
			return units, false
		case state.Mismatch:
		default:
			return 0, true
		}
	}
	return 0, true
}

// find returns what is left of the grant, nil if nothing is.
func (lg *leasedGrant) find(l *state.Lease) *state.GrantLeft {
	for i := range l.Grants {
		left := &l.Grants[i]
		if left.Stream == lg.stream && left.Number == lg.number && left.Units > 0 {
			return left
		}
	}
	return nil
}
