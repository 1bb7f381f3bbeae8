package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Bequeath leaves what lingers to a later configuration. It reports whether it could.
func (e *Engine) Bequeath(list []decide.Lingering) bool {
	tables := make([]*state.Table, len(list))
	left := make([]state.Lingering, len(list))
	for i := range list {
		l := &list[i]
		tables[i], left[i] = l.Rule.Counted, state.Lingering{Receipt: l.Receipt, EndNs: l.UntilNs}
	}
	return e.tables.LeaveLingering(tables, left) == state.OK
}

// Inherit calls take with what an earlier configuration has left. It reports whether it could
// look.
func (e *Engine) Inherit(take func(l decide.Lingering)) bool {
	return e.tables.TakeLingering(func(table *state.Table, l state.Lingering) {
		for i := range e.rules.List {
			if r := &e.rules.List[i].Rule; r.Counted == table && r.Policy.Concurrency() {
				take(decide.Lingering{Hold: r.Hold(l.Receipt), UntilNs: l.EndNs})
				return
			}
		}
	}) == state.OK
}
