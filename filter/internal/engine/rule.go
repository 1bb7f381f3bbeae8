package engine

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// rule is a compiled policy.Rule.
type rule struct {
	policy    *policy.Rule
	match     match
	exempt    []match
	key       []keyPart
	cost      cost
	windows   []limit.Window // in the order of limit.Window.Compare, as its table has them
	order     []int          // windows[order[i]] is the policy's limit i
	overrides []override
	table     *state.Table // nil without limits
	jitters   bool         // some window's grid is shifted by the key
	identity  []byte       // what goes before a key in its stable hash
	metrics   Metrics
	spikes    spikes
	memory    memory
}

// override is a compiled policy.Override.
type override struct {
	key       []pattern
	unlimited bool
	windows   []limit.Window // in the order of rule.windows
}

func (e *Engine) compile(p *policy.Rule) rule {
	r := rule{policy: p, match: e.request.compileMatch(&p.Match, false), cost: cost{Cost: p.Cost}}
	for i := range p.Exempt {
		r.exempt = append(r.exempt, e.request.compileMatch(&p.Exempt[i], true))
	}
	r.identity = state.AppendPart(state.AppendPart(nil, e.policy.Domain), p.Counter)
	switch {
	case p.Cost.Header != "":
		r.cost.number = e.request.number(p.Cost.Header)
	case p.Cost.Query != "":
		r.cost.number = e.request.parameterNumber(p.Cost.Query)
	}
	r.key = e.request.compileKey(p.Key)
	if len(p.Limits) == 0 {
		return r
	}
	r.windows = p.Windows()
	slices.SortFunc(r.windows, limit.Window.Compare)
	for _, l := range p.Limits {
		r.order = append(r.order, slices.IndexFunc(r.windows, l.Same))
	}
	r.jitters = slices.ContainsFunc(r.windows, func(w limit.Window) bool { return w.Jitter > 0 })
	for i := range p.Overrides {
		r.overrides = append(r.overrides, compileOverride(&p.Overrides[i], r.windows))
	}
	r.windows = state.Overridden(r.windows, r.limitsOfTheirOwn())
	r.table = e.tables.Table(state.Definition{
		Counter:  state.NewCounterID(e.policy.Domain, p.Counter, p.KeyDefinition(), p.Capacity),
		Windows:  r.windows,
		Capacity: p.Capacity,
	})
	return r
}

// limitsOfTheirOwn says which keys have which limits instead of the rule's.
func (r *rule) limitsOfTheirOwn() []state.Override {
	overrides := make([]state.Override, len(r.overrides))
	for i := range r.overrides {
		var keys []byte
		for _, p := range r.policy.Overrides[i].Key {
			keys = state.AppendPart(append(keys, byte(p.Kind)), p.Text)
		}
		overrides[i] = state.Override{Keys: string(keys), Windows: r.overrides[i].windows}
	}
	return overrides
}

// compileOverride takes the rule's windows in their order.
func compileOverride(p *policy.Override, of []limit.Window) override {
	o := override{unlimited: p.Unlimited, windows: p.Windows()}
	slices.SortFunc(o.windows, limit.Window.Compare)
	raises := o.raises(of)
	for _, text := range p.Key {
		o.key = append(o.key, compilePattern(text, !raises))
	}
	return o
}

// raises reports whether the override allows more than the rule in some window.
func (o *override) raises(of []limit.Window) bool {
	for i := range o.windows {
		if w := &o.windows[i]; w.Unlimited || w.Limit > of[i].Limit || w.Burst > of[i].Burst {
			return true
		}
	}
	return o.unlimited
}

// override returns the first override that holds for the key, or nil.
func (r *rule) override(k *key, req *request) *override {
	for i := range r.overrides {
		o := &r.overrides[i]
		if o.holds(k, req) {
			return o
		}
	}
	return nil
}

func (o *override) holds(k *key, req *request) bool {
	for i := range o.key {
		if p := &k.parts[i]; !o.key[i].holds(p.whole(), p.present, req) {
			return false
		}
	}
	return true
}
