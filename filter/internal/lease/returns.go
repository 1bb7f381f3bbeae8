package lease

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Units that nobody takes go back, so that other proxies can have them:
//
//	watchGrant  remembers each grant of which writeLease has put units into a lease
//	takeIdle    visits it at a Tick, and takes its units out of the lease if their time is over, or if nobody
//	            has written the lease for idleNs
//	Flush       returns them on the stream that got them; once that has ended, it cannot

// returnable is a grant with units in a key's lease, which this worker's stream can give back.
type returnable struct {
	source  *Source
	key     state.LeaseKey
	stream  uint32
	number  uint32 // of the grant
	visitNs int64  // when takeIdle visits it next; see visitAt
}

const (
	// maxReturnable is how many such grants one worker remembers.
	maxReturnable = 4096
	// maxVisitNs is the longest time until a worker visits a grant again.
	maxVisitNs = 1_000_000_000
)

// returnables are a worker's grants of that kind. Those whose units are spent leave them at the next visit.
type returnables struct {
	list    []returnable
	visitNs int64 // when to visit the first of them
	idleNs  int64 // the shortest time after which one is idle, 0 = none is left
}

// watch remembers a returnable grant, for takeIdle to visit it at visitNs.
func (rets *returnables) watch(ret returnable) {
	if len(rets.list) >= maxReturnable {
		ret.source.rule.Metrics.LeaseLost++ // counted as one: what is left is not known yet
		return
	}
	rets.list = append(rets.list, ret)
	rets.visitNs = min(rets.visitNs, ret.visitNs)
	if idle := ret.source.idleNs; rets.idleNs == 0 || idle < rets.idleNs {
		rets.idleNs = idle
	}
}

// watchGrant remembers a grant whose units were put into the lease at writtenNs.
func (rets *returnables) watchGrant(g *grant, writtenNs int64) {
	src := g.part.source
	visitNs := rets.visitAt(src, writtenNs, writtenNs, g.endNs)
	rets.watch(returnable{src, g.part.leaseKey, g.stream, g.Number, visitNs})
}

// visitAt is when to visit units next that were written last at writtenNs: when they may be idle, or when
// their lease ends, and within maxVisitNs. If the list is half full, it is within 50 ms.
func (rets *returnables) visitAt(src *Source, now, writtenNs, endNs int64) int64 {
	most := int64(maxVisitNs)
	if len(rets.list) >= maxReturnable/2 {
		most /= 20
	}
	return min(writtenNs+src.idleNs, endNs, now+most)
}

// takeIdle appends the units that the stream got and nobody takes any more, of at most maxReturns grants.
func (w *Worker) takeIdle(returns []quota.Return, stream uint32) []quota.Return {
	rets, most := &w.returnables, len(returns)+maxReturns
	if len(rets.list) == 0 {
		return returns
	}
	now := w.clock.Monotonic()
	if now < rets.visitNs {
		return returns
	}
	wallNs, all := w.clock.Now(), rets.list
	rets.list = all[:0] // watch fills it again with what stays, never further than the loop has read
	rets.visitNs, rets.idleNs = math.MaxInt64, 0
	for _, ret := range all {
		if ret.stream != stream {
			continue // its stream has ended: the units stay counted
		}
		if now < ret.visitNs || len(returns) >= most {
			rets.watch(ret)
			continue
		}
		units, keep := ret.take(&w.entry, wallNs, now)
		if units > 0 {
			returns = append(returns, quota.Return{Grant: ret.number, Units: units})
		}
		if keep {
			rets.watch(ret)
		}
	}
	return returns
}

// take takes the grant's units out of the record if they are idle. Where it keeps
// them, it notes when to visit it again.
func (ret *returnable) take(e *state.LeaseEntry, wallNs, now int64) (units uint32, keep bool) {
	src := ret.source
	for range state.MaxRetries {
		ret.visitNs = now + maxVisitNs
		if src.table.ReadKey(e, ret.key, wallNs, now) != state.OK {
			return 0, true
		}
		left := ret.find(&e.Lease)
		if left == nil {
			return 0, e.Ahead // a later tick can read it
		}
		if now < left.EndNs && now-e.WrittenNs < src.idleNs {
			ret.visitNs = src.worker.returnables.visitAt(src, now, e.WrittenNs, left.EndNs)
			return 0, true
		}
		units, left.Units = left.Units, 0
		switch src.table.Write(e) {
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
func (ret *returnable) find(l *state.Lease) *state.GrantLeft {
	for i := range l.Grants {
		left := &l.Grants[i]
		if left.Stream == ret.stream && left.Number == ret.number && left.Units > 0 {
			return left
		}
	}
	return nil
}
