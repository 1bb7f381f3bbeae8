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
	// NewRule sets these.
	Policy  *policy.Rule
	Finder  policy.Finder // finds the limits that hold for a key
	Metrics metrics.Set

	countsDenied           bool // this proxy counts hits that the rule denies: for scope cluster the service does
	blockIsEnforcedByOther bool // another rule, which shares the counter, enforces the blocks that this one begins

	// takesLate says that the rule takes its units after the others, because it begins blocks. Else:
	//
	//	request A  takes the last units, and its next rule denies it
	//	request B  finds no units left, and begins a block of the key
	//	request A  refunds the units: nobody has used them, and the key is blocked
	//
	// A rule that holds need not: who lacks only what is held begins no block. Of two rules that take late it can still
	// happen to the first.
	takesLate bool

	// SetSource sets these.
	Source  Source       // nil without limits
	Counted *state.Table // in which Source counts, and other rules that share the counter; nil if in none
	ofHolds hold.Rule    // of a rule that holds

	// The engine sets these.
	Denials      *denials.Rule   // the keys that the rule denies; nil if the policy reports no keys
	DenialWorker *denials.Worker // which counts them
}

// NewRule returns the rule of a policy, without a source.
func NewRule(p *policy.Policy, r *policy.Rule) Rule {
	return Rule{
		Policy: r, Finder: p.Finder(r), Metrics: metrics.Of(r),
		countsDenied: r.CountDenied && r.Scope == policy.ScopeProxy,
		takesLate:    r.Block != nil && !r.Holds(),
		blockIsEnforcedByOther: r.Block != nil && slices.ContainsFunc(p.Rules, func(other policy.Rule) bool {
			enforces := other.Mode == policy.ModeEnforce && other.EnforcePercent > 0
			return enforces && other.Counter == r.Counter && other.Name != r.Name
		}),
	}
}

// SetSource gives the rule its source, and the table in which it counts. The source of a rule that holds must be a
// HoldSource. From then on the rule stays where it is: its source, and ofHolds, have its address or that of its
// Metrics.
func (r *Rule) SetSource(s Source, counted *state.Table) {
	r.Source, r.Counted = s, counted
	if r.Policy.Holds() {
		r.ofHolds = hold.Rule{Policy: r.Policy, Metrics: &r.Metrics, Source: r.holdSource()}
	}
}

// holdSource is the source of a rule that holds.
func (r *Rule) holdSource() HoldSource { return r.Source.(HoldSource) }

// Tables are those of the rule's source.
func (r *Rule) Tables() []Table {
	if r.Source == nil {
		return nil
	}
	return r.Source.Tables()
}
