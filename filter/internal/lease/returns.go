package lease

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// leased is a grant that this worker's stream may return.
type leased struct {
	source *Source
	place  state.Place
	stream uint32
	number uint32 // of the grant
	lookNs int64  // when to look at it next; see lookAt
}

const (
	// maxLeased is how many grants one worker can return.
	maxLeased = 4096
	// maxLookNs is the longest time until a worker looks at a grant again.
	maxLookNs = 1_000_000_000
)

func (w *Worker) watch(h leased) {
	if len(w.leased) >= maxLeased {
		h.source.rule.Metrics.LeaseLost++ // counted as one: what is left is not known yet
		return
	}
	w.leased = append(w.leased, h)
	w.lookNs = min(w.lookNs, h.lookNs)
	if idle := h.source.idleNs; w.idleNs == 0 || idle < w.idleNs {
		w.idleNs = idle
	}
}

// lookAt is when to look at units next that were written last at writtenNs: when they may
// be idle. Spent ones leave the list then, so it is sooner if the list is long.
func (c *Source) lookAt(now, writtenNs, endNs int64) int64 {
	most := int64(maxLookNs)
	if len(c.worker.leased) >= maxLeased/2 {
		most /= 20
	}
	return min(writtenNs+c.idleNs, endNs, now+most)
}

// takeIdle appends the units that the stream got and nobody takes any more, at most so many
// grants of them.
func (w *Worker) takeIdle(returns []quota.Return, stream uint32, maxGrants int) []quota.Return {
	if len(w.leased) == 0 {
		return returns
	}
	now := w.clock.Monotonic()
	if now < w.lookNs {
		return returns
	}
	wall, all := w.clock.Now(), w.leased
	w.leased = all[:0]
	w.lookNs, w.idleNs = math.MaxInt64, 0
	for _, h := range all {
		if h.stream != stream {
			continue // its stream has ended: the units stay counted
		}
		if now < h.lookNs || len(returns) >= maxGrants {
			w.watch(h)
			continue
		}
		units, keep := h.take(&w.entry, wall, now)
		if units > 0 {
			returns = append(returns, quota.Return{Grant: h.number, Units: units})
		}
		if keep {
			w.watch(h)
		}
	}
	return returns
}

// take takes the grant's units out of the record if they are idle. Where it keeps
// them, it notes when to look again.
func (h *leased) take(e *state.LeaseEntry, wall, now int64) (units uint32, keep bool) {
	c := h.source
	for range state.MaxRetries {
		h.lookNs = now + maxLookNs
		if c.table.ReadAt(e, h.place, wall, now) != state.OK {
			return 0, true
		}
		g := h.find(&e.Lease)
		if g == nil {
			return 0, e.Newer // a later tick can read it
		}
		if now < g.EndNs && now-e.WrittenNs < c.idleNs {
			h.lookNs = c.lookAt(now, e.WrittenNs, g.EndNs)
			return 0, true
		}
		units, g.Units = g.Units, 0
		switch c.table.Write(e) {
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
func (h *leased) find(l *state.Lease) *state.GrantLeft {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Stream == h.stream && g.Number == h.number && g.Units > 0 {
			return g
		}
	}
	return nil
}
