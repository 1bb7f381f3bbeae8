package lease

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

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

// watch remembers the grant, for takeIdle to visit it at visitNs.
func (w *Worker) watch(ret returnable) {
	if len(w.returnable) >= maxReturnable {
		ret.source.rule.Metrics.LeaseLost++ // counted as one: what is left is not known yet
		return
	}
	w.returnable = append(w.returnable, ret)
	w.visitNs = min(w.visitNs, ret.visitNs)
	if idle := ret.source.idleNs; w.idleNs == 0 || idle < w.idleNs {
		w.idleNs = idle
	}
}

// visitAt is when to visit units next that were written last at writtenNs: when they may
// be idle, or when their lease ends, and within maxVisitNs. Spent ones leave the list then. So if
// the list is half full, it is within 50 ms.
func (src *Source) visitAt(now, writtenNs, endNs int64) int64 {
	most := int64(maxVisitNs)
	if len(src.worker.returnable) >= maxReturnable/2 {
		most /= 20
	}
	return min(writtenNs+src.idleNs, endNs, now+most)
}

// takeIdle appends the units that the stream got and nobody takes any more, at most so many
// grants of them.
func (w *Worker) takeIdle(returns []quota.Return, stream uint32, maxGrants int) []quota.Return {
	if len(w.returnable) == 0 {
		return returns
	}
	now := w.clock.Monotonic()
	if now < w.visitNs {
		return returns
	}
	wallNs, all := w.clock.Now(), w.returnable
	w.returnable = all[:0] // watch fills it again with what stays, never further than the loop has read
	w.visitNs, w.idleNs = math.MaxInt64, 0
	for _, ret := range all {
		if ret.stream != stream {
			continue // its stream has ended: the units stay counted
		}
		if now < ret.visitNs || len(returns) >= maxGrants {
			w.watch(ret)
			continue
		}
		units, keep := ret.take(&w.entry, wallNs, now)
		if units > 0 {
			returns = append(returns, quota.Return{Grant: ret.number, Units: units})
		}
		if keep {
			w.watch(ret)
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
		g := ret.find(&e.Lease)
		if g == nil {
			return 0, e.Ahead // a later tick can read it
		}
		if now < g.EndNs && now-e.WrittenNs < src.idleNs {
			ret.visitNs = src.visitAt(now, e.WrittenNs, g.EndNs)
			return 0, true
		}
		units, g.Units = g.Units, 0
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
		if g := &l.Grants[i]; g.Stream == ret.stream && g.Number == ret.number && g.Units > 0 {
			return g
		}
	}
	return nil
}
