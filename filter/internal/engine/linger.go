package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Bequeath leaves holds, each to be settled at its end by the monotonic clock, to a later
// configuration. It reports whether it could.
func (e *Engine) Bequeath(holds []decide.Hold, endsNs []int64) bool {
	tables := make([]*state.Table, len(holds))
	left := make([]state.Lingering, len(holds))
	for i := range holds {
		tables[i], left[i] = holds[i].Rule.Counted, state.Lingering{Receipt: holds[i].Receipt, EndNs: endsNs[i]}
	}
	return e.tables.LeaveLingering(tables, left) == state.OK
}

// Inherit calls take with each hold that an earlier configuration has left. It reports whether
// it could look.
func (e *Engine) Inherit(take func(h decide.Hold, endNs int64)) bool {
	return e.tables.TakeLingering(func(table *state.Table, l state.Lingering) {
		for i := range e.rules.List {
			if r := &e.rules.List[i].Rule; r.Counted == table && r.Policy.Concurrency() {
				take(r.Hold(l.Receipt), l.EndNs)
				return
			}
		}
	}) == state.OK
}
