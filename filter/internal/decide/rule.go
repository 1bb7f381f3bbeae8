package decide

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Rule decides by a policy.Rule, and counts what it has decided.
type Rule struct {
	hold.Rule // NewRule makes Policy, Finder and Metrics of it, and SetSource Holder

	// NewRule.
	//
	// countsDenied says that this proxy counts hits that the rule denies. It is false for scope cluster: there
	// the service counts them, as the rule's definition says.
	countsDenied bool
	// takesLate says that the rule takes its units after others, so that few are refunded: until then, another
	// request may lack them, and begin a block for nothing. A request that lacks units which are held begins none.
	takesLate bool
	// blocksOthers says that another rule enforces the blocks that this one begins, because they share a
	// counter.
	blocksOthers bool

	// SetSource.
	Source     Source       // nil without limits
	HoldSource HoldSource   // Source again if the rule holds, as is Holder; else both are nil
	Counted    *state.Table // in which Source counts; rules that share a counter share it

	// The engine.
	Denials      *denials.Rule   // the keys that the rule denies; nil if the policy reports no keys
	DenialWorker *denials.Worker // which counts them
}

// NewRule returns the rule of a policy, without a source.
func NewRule(p *policy.Policy, r *policy.Rule) Rule {
	rule := Rule{Rule: hold.Rule{Policy: r, Finder: p.Subjects(r), Metrics: metrics.Of(r)}}
	rule.countsDenied = r.CountDenied && r.Scope == policy.ScopeProxy
	rule.takesLate = r.Block != nil && !r.Holds()
	rule.blocksOthers = r.Block != nil && slices.ContainsFunc(p.Rules, func(other policy.Rule) bool {
		enforces := other.Mode == policy.ModeEnforce && other.EnforcePercent > 0
		return enforces && other.Counter == r.Counter && other.Name != r.Name
	})
	return rule
}

// SetSource gives the rule its source, and the table in which it counts. The source of a rule
// that holds must be a HoldSource.
func (r *Rule) SetSource(s Source, counted *state.Table) {
	r.Source, r.Counted = s, counted
	if r.Policy.Holds() {
		r.HoldSource = s.(HoldSource)
		r.Holder = r.HoldSource
	}
}

// Tables are those of the rule's source.
func (r *Rule) Tables() []Table {
	if r.Source == nil {
		return nil
	}
	return r.Source.Tables()
}
