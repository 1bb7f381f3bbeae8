package engine

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// rule is a compiled policy.Rule.
type rule struct {
	policy   *policy.Rule
	match    match.Match
	exempt   []match.Match
	key      []match.KeyPart
	cost     match.Costs
	subjects policy.Subjects
	table    *state.Table // nil without limits, and where only the quota service counts
	leases   *leases      // nil unless the scope is cluster
	counted  *state.Table // holds the rule's counts or leases; rules that share a counter share it
	units    units        // nil without limits
	always   bool         // every request is for the rule
	metrics  Metrics
	named    []namedMetrics // of the overrides' names, in the order of Rule.OverrideNames
	namedBy  []int          // by override: index in named, -1 for none
	spikes   spikes
	memory   memory
	denials  *denials.Rule // nil where the policy reports no keys
	worker   *denials.Worker
}

func (e *Engine) compile(p *policy.Rule) rule {
	req := &e.request
	r := rule{policy: p, match: match.Compile(req, &p.Match, false)}
	r.exempt = compileExempt(req, p.Exempt)
	r.always = r.match.IsEmpty() && len(r.exempt) == 0
	r.subjects = e.policy.Subjects(p)
	r.cost = match.CompileCosts(req, p)
	r.key = match.CompileKey(req, p.Key)
	r.denials, r.worker = e.newDenials(p), e.denials
	if len(p.Limits) == 0 {
		return r
	}
	names := p.OverrideNames()
	names = names[:min(len(names), policy.MaxCountedNames)]
	for _, name := range names {
		r.named = append(r.named, namedMetrics{name: name})
	}
	for i := range p.Overrides {
		r.namedBy = append(r.namedBy, slices.Index(names, p.Overrides[i].Name))
	}
	if p.Scope == policy.ScopeCluster {
		if p.OnUnavailable == policy.UnavailableLocal {
			r.table = e.table(&r, "\x00local")
		}
		return r // Engine.lease adds the leases
	}
	r.table = e.table(&r, "")
	r.counted = r.table
	r.units = &records{r.table}
	return r
}

// table is the table of a rule's counter. What the counter's name is followed by
// tells apart tables of one counter.
func (e *Engine) table(r *rule, suffix string) *state.Table {
	return e.tables.Table(state.Definition{
		Counter: r.subjects.Counter(suffix, r.policy.Capacity), Windows: r.subjects.Windows, Capacity: r.policy.Capacity,
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
