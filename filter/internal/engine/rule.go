package engine

import (
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// rule is a compiled policy.Rule.
type rule struct {
	policy    *policy.Rule
	match     match.Match
	exempt    []match.Match
	key       []match.KeyPart
	cost      match.Costs
	windows   []limit.Window // in the order of limit.Window.Compare, as its table has them
	order     []int          // windows[order[i]] is the policy's limit i
	overrides []override
	table     *state.Table // nil without limits, and where only the quota service counts
	leases    *leases      // nil unless the scope is cluster
	counted   *state.Table // holds the rule's counts or leases; rules that share a counter share it
	units     units        // nil without limits
	always    bool         // every request is for the rule
	jitters   bool         // some window's grid is shifted by the key
	identity  []byte       // precedes a key in its stable hash
	metrics   Metrics
	named     []namedMetrics // of the overrides' names
	spikes    spikes
	memory    memory
	denials   *denials.Rule // nil where the policy reports no keys
	worker    *denials.Worker
}

// override is a compiled policy.Override.
type override struct {
	key       match.KeyPatterns
	unlimited bool
	named     int            // index in rule.named, -1 for none
	windows   []limit.Window // in the order of rule.windows
}

func (e *Engine) compile(p *policy.Rule) rule {
	req := &e.request
	r := rule{policy: p, match: match.Compile(req, &p.Match, false)}
	r.exempt = compileExempt(req, p.Exempt)
	r.always = r.match.IsEmpty() && len(r.exempt) == 0
	r.identity = state.AppendPart(state.AppendPart(nil, e.policy.Domain), p.Counter)
	r.cost = match.CompileCosts(req, p)
	r.key = match.CompileKey(req, p.Key)
	r.denials, r.worker = e.newDenials(p), e.denials
	if len(p.Limits) == 0 {
		return r
	}
	r.windows = p.Windows()
	sortWindows(r.windows)
	for _, l := range p.Limits {
		r.order = append(r.order, slices.IndexFunc(r.windows, l.Same))
	}
	r.jitters = slices.ContainsFunc(r.windows, func(w limit.Window) bool { return w.Jitter > 0 })
	names := p.OverrideNames()
	names = names[:min(len(names), policy.MaxCountedNames)]
	r.named = make([]namedMetrics, len(names))
	for i := range p.Overrides {
		o := compileOverride(&p.Overrides[i], p)
		o.named = slices.Index(names, p.Overrides[i].Name)
		r.overrides = append(r.overrides, o)
	}
	for i := range names {
		r.named[i].name = names[i]
	}
	r.windows = state.Overridden(r.windows, r.limitsOfTheirOwn())
	if p.Scope == policy.ScopeCluster {
		if p.OnUnavailable == policy.UnavailableLocal {
			r.table = e.table(p, r.windows, "\x00local")
		}
		return r // Engine.lease adds the leases
	}
	r.table = e.table(p, r.windows, "")
	r.counted = r.table
	r.units = &records{r.table}
	return r
}

// table is the table of a rule's counter. What the counter's name is followed by
// tells apart tables of one counter.
func (e *Engine) table(p *policy.Rule, windows []limit.Window, suffix string) *state.Table {
	return e.tables.Table(state.Definition{
		Counter:  state.NewCounterID(e.policy.Domain, p.Counter, p.KeyDefinition()+suffix, p.Capacity),
		Windows:  windows,
		Capacity: p.Capacity,
	})
}

// concerns reports whether the request matches and is not exempt.
func (r *rule) concerns(req *request.Request) bool {
	return r.match.Holds(req) && !isExempt(r.exempt, req)
}

func compileExempt(req *request.Request, list []policy.Match) (exempt []match.Match) {
	for i := range list {
		exempt = append(exempt, match.Compile(req, &list[i], true))
	}
	return exempt
}

func isExempt(list []match.Match, req *request.Request) bool {
	for i := range list {
		if list[i].Holds(req) {
			return true
		}
	}
	return false
}

// limitsOfTheirOwn says which keys have limits of their own, for state.Overridden.
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

func compileOverride(p *policy.Override, of *policy.Rule) override {
	o := override{unlimited: p.Unlimited, windows: p.Windows()}
	sortWindows(o.windows)
	o.key = match.CompileKeyPatterns(p.Key, !p.Raises(of))
	return o
}

// override returns the index of the first override that holds for the key, -1
// for none.
func (r *rule) override(k *match.Key, req *request.Request) int {
	for i := range r.overrides {
		if r.overrides[i].key.Hold(k, req) {
			return i
		}
	}
	return -1
}

// sortWindows sorts by sort.Slice: each type that slices.SortFunc sorts adds 20 kB to
// the module.
func sortWindows(w []limit.Window) {
	sort.Slice(w, func(i, j int) bool { return w[i].Compare(w[j]) < 0 })
}
