package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// addSource gives a rule its source of units.
func (e *Engine) addSource(r *decide.Rule) {
	switch {
	case len(r.Policy.Limits) == 0:
	case r.Policy.Scope != policy.ScopeCluster:
		table := e.table(r, "")
		r.SetSource(local.New(r, table), table)
	case r.Policy.OnUnavailable == policy.UnavailableLocal:
		e.Leases.Add(r, e.table(r, "\x00local"))
	default:
		e.Leases.Add(r, nil)
	}
}

// table is the table of a rule's counter. What the definition of its key is followed by
// tells apart tables of one counter.
func (e *Engine) table(r *decide.Rule, suffix string) *state.Table {
	return e.tables.Table(state.Definition{
		Counter: r.Subjects.Counter(suffix, r.Policy.Capacity), Windows: r.Subjects.Windows, Capacity: r.Policy.Capacity,
	})
}
