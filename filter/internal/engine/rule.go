package engine

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// rule is a compiled policy.Rule.
type rule struct {
	policy  *policy.Rule
	match   match
	key     []keyPart
	cost    cost
	windows []limit.Window // in the order of limit.Window.Compare, as its table has them
	order   []int          // windows[order[i]] is the policy's limit i
	table   *state.Table   // nil without limits
	metrics Metrics
}

func (e *Engine) compile(p *policy.Rule) (rule, error) {
	m, err := e.request.compileMatch(&p.Match)
	if err != nil {
		return rule{}, err
	}
	r := rule{policy: p, match: m, cost: cost{Cost: p.Cost}}
	if p.Cost.Header != "" {
		r.cost.number = e.request.number(p.Cost.Header)
	}
	for _, part := range p.Key {
		k := keyPart{KeyPart: part}
		if part.Kind == policy.KeyHeader {
			k.number = e.request.number(part.Name)
		}
		r.key = append(r.key, k)
	}
	if len(p.Limits) == 0 {
		return r, nil
	}
	r.windows = p.Windows()
	slices.SortFunc(r.windows, limit.Window.Compare)
	for _, l := range p.Limits {
		r.order = append(r.order, slices.IndexFunc(r.windows, l.Window.Same))
	}
	r.table = e.tables.Table(state.Definition{
		Counter:  state.NewCounterID(e.policy.Domain, p.Counter, p.KeyDefinition(), p.Capacity),
		Windows:  r.windows,
		Capacity: p.Capacity,
	})
	return r, nil
}
