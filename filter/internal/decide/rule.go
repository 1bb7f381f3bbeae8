package decide

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Source is where the units of one rule come from. What it finds out about a subject it writes
// to the subject: it remembers nothing of a request.
type Source interface {
	// Check finds out how the subject's key stands at now, for its cost and what the
	// subjects before it take from the same record. It sets Known. For Denied, Blocked, HeldBack
	// and Full it sets PassNs to the instant at which the units are free.
	Check(s *Subject, now int64) Outcome
	// Look finds out how the key stands at now, and leaves no trace. It sets Known. A rule of scope cluster
	// knows only what the quota service has told the subject before.
	Look(s *Subject, now int64)
	// Recheck is Check after another worker, or another rule, wrote first.
	Recheck(s *Subject, now int64) Outcome
	// Take counts the cost of a subject for which Check has found room: Taken, Raced, Full or
	// Failed. A rule that holds keeps the units until its HoldSource settles them. PassNs stays as
	// Check left it, also for Full: a request that had room, and then found the page full, is told
	// that it may try again at once.
	Take(s *Subject) Outcome
	// KeepDenied stores what a hit leaves that the rule has denied by its limits: see denied.go. Its outcomes are
	// those of Take. If it is Taken, PassNs becomes the instant at which the next hit like this one passes. Of a
	// rule of scope cluster it is only called for what OwnShare has denied.
	KeepDenied(s *Subject) Outcome
	// Refund undoes Take. It reports whether every window has the units back.
	Refund(s *Subject, now int64) (complete bool)
	// Persist stores what Check has moved to the present, though nothing is taken.
	Persist(s *Subject)
	// Usage is the usage of a window of Rule.Finder.Windows, as of Check or Take. It is
	// valid until the next call. It is only for a subject that is Known.
	Usage(s *Subject, window int) *limit.Usage

	// Operate carries out an operation on the windows of the subject's key, or on one: an index in
	// Rule.Finder.Windows, or state.AllWindows.
	Operate(s *Subject, o Operation, window int, n uint32, now int64) (value int64, err error)
	// Tables are those in which the source counts. The first has every key.
	Tables() []Table
}

// Operation is what Source.Operate does.
type Operation string

// The operations, by the names that operators give them. A source of scope cluster carries out Leased
// alone, and another one all but Leased.
const (
	Get       Operation = "get"
	Inc       Operation = "inc"
	Set       Operation = "set"
	Reset     Operation = "reset"
	ExpiresAt Operation = "expires_at"
	Leased    Operation = "leased"
)

// HoldSource is a Source of a rule that holds units until answers are known.
type HoldSource interface {
	Source
	// Held is how many units of the key are held, as of Check or Take.
	Held(s *Subject) uint32
	// Settle ends a hold, and charges what the request really cost. It reports
	// whether the hold had lapsed before, and been charged.
	Settle(h *Hold, cost uint32, now int64) (lapsed, ok bool)
	// Renew keeps a hold from lapsing, because its request is still alive. A hold lasts for eight
	// parts, and Renew writes once in each: it returns NotDue until the next part begins, and
	// always in a table once the hold HasEnded. It returns Lapsed if all is charged.
	Renew(h *Hold, at Clocks) Renewal
}

// Table is a table of a source.
type Table struct {
	*state.Table
	OfRule []limit.Window // the limits by which its records count
	Entry  *state.Entry   // memory for a visit of all pages
}

// Rule decides by a policy.Rule, and counts what it has decided.
type Rule struct {
	// NewRule.
	Policy *policy.Rule
	Finder policy.Subjects
	// CountsDeniedHere says that this proxy counts hits that the rule denies. It is false for scope cluster: there
	// the service counts them, as the rule's definition says.
	CountsDeniedHere bool

	// takesLast is of a rule that blocks a key when its last unit is taken, but not when it is held.
	// Verdict.take takes its units last, so that few are refunded: another request may see one that is
	// refunded later, and would begin a block for nothing.
	takesLast bool
	// blocksOthers says that another rule enforces the blocks that this one begins, because they share a
	// counter.
	blocksOthers bool

	// SetSource.
	Source     Source       // nil without limits
	HoldSource HoldSource   // Source again if the rule holds, else nil
	Counted    *state.Table // in which Source counts; rules that share a counter share it

	// What this worker has counted.
	Metrics Metrics
	Priced  *Priced   // nil unless the rule charges prices
	Holding HeldTotal // of its streams
	Named   []Named   // by names of overrides
	namedBy []int     // by override: index in Named, -1 for none
	spikes  spikes

	// The engine.
	Denials      *denials.Rule   // the keys that the rule denies; nil if the policy reports no keys
	DenialWorker *denials.Worker // which counts them
}

// NewRule returns the rule of a policy, without a source.
func NewRule(p *policy.Policy, r *policy.Rule) Rule {
	rule := Rule{Policy: r, Finder: p.Subjects(r)}
	if r.Settle != nil && len(r.Settle.Prices) > 0 {
		rule.Priced = &Priced{}
	}
	rule.CountsDeniedHere = r.CountDenied && r.Scope == policy.ScopeProxy
	rule.takesLast = r.Block != nil && !r.Holds()
	rule.blocksOthers = r.Block != nil && slices.ContainsFunc(p.Rules, func(other policy.Rule) bool {
		enforces := other.Mode == policy.ModeEnforce && other.EnforcePercent > 0
		return enforces && other.Counter == r.Counter && other.Name != r.Name
	})
	names := r.OverrideNames()
	names = names[:min(len(names), policy.MaxCountedNames)]
	for _, name := range names {
		rule.Named = append(rule.Named, Named{Name: name})
	}
	for i := range r.Overrides {
		rule.namedBy = append(rule.namedBy, slices.Index(names, r.Overrides[i].Name))
	}
	return rule
}

// SetSource gives the rule its source, and the table in which it counts. The source of a rule
// that holds must be a HoldSource.
func (r *Rule) SetSource(s Source, counted *state.Table) {
	r.Source, r.Counted = s, counted
	if r.Policy.Holds() {
		r.HoldSource = s.(HoldSource)
	}
}

// Tables are those of the rule's source.
func (r *Rule) Tables() []Table {
	if r.Source == nil {
		return nil
	}
	return r.Source.Tables()
}
