// Package metrics has what a worker has counted of each rule since its engine was made, and what its streams hold now.
//
// Its invariant: it decides nothing, and no decision reads it.
//
//	decide, hold, rules, local, lease, host   each adds to the fields of what it finds out
//	   |
//	   v
//	Set, of one rule
//	   |  Counts and Priced by Each, Named and Holding by package engine
//	   v
//	host.flushMetrics                         publishes all to Envoy, as docs/metrics.md says
//
// A field of Counts or Priced has the name of its metric: QuotaWaited is rate_limit_quota_waited_total. A field with
// several numbers has the beginning of their names. To add one: the field, its name in Each or in the part of Each that
// is of the same rules, and docs/metrics.md.
package metrics

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Set is the metrics of one rule.
type Set struct {
	Counts
	Priced  *Priced           // nil unless the rule charges prices
	Holding state.StreamTotal // what streams hold of the rule now
	Named   []Named           // by names of overrides

	policy    *policy.Rule
	namedBy   []int // by override: index in Named, -1 for none
	discarded Named // what CountsOf returns for all others: nobody reads it
	spikes    spikes
}

// Of returns the metrics of a rule, of which nothing is counted.
func Of(p *policy.Rule) Set {
	m := Set{policy: p}
	if p.Settle != nil && len(p.Settle.Prices) > 0 {
		m.Priced = &Priced{}
	}
	names := p.OverrideNames()
	names = names[:min(len(names), policy.MaxCountedNames)]
	for _, name := range names {
		m.Named = append(m.Named, Named{Name: name})
	}
	for i := range p.Overrides {
		m.namedBy = append(m.namedBy, slices.Index(names, p.Overrides[i].Name))
	}
	return m
}

// Counts are numbers that only grow. Each group says who adds to it, and what one unit of a number is.
type Counts struct {
	// decide.Verdict.note, and Subject.noteOutcome for it. A decided request counts once, however often it is checked.
	Allowed          uint64 // requests that the rule matched and that went through
	Denied           uint64 // requests that this rule denied
	ShadowDenied     uint64 // requests that it would have denied, were it enforced
	FloorDenied      uint64 // denials of keys that started from a page's floor
	ClockRebased     uint64 // records of a wild clock, moved to the present
	BoundarySpikes   uint64 // units around a window's boundary beyond its limit, of rules that hold none; see spikes
	QuotaUnavailable uint64 // of rules of scope cluster: requests for which on_unavailable decided

	// These add up two things: requests for which a field of the policy decided, from decide.Verdict.note, and denied
	// hits that could not be kept, from decide.Subject.storeDenied. Errors has the failures of package hold, too.
	Full       uint64 // on_full: a page had no room
	Contention uint64 // on_contention: others wrote first each time, or as decide.Contended and a fate say
	Errors     uint64 // on_error: a call into the proxy failed

	// The others count events: one request may have several. decide.Subject:
	CASRetries   uint64 // compare-and-swaps that came after another worker's write, or after one of the same request
	NotTakenBack uint64 // refunds that failed: their requests were denied or Pending, and the charges had to stay

	// Package rules.
	TooLong        uint64 // requests with a value too long for a regular expression
	CostUnreadable uint64 // requests whose cost is no plain number, or not one number

	// NoteStored, which sources call.
	Evicted      uint64 // live records that made room for others
	WindowResets uint64 // windows that had ended when their key was counted again
	BlocksBegun  uint64 // of rules with a block. Package lease adds those of the quota service

	// Of rules of scope cluster.
	QuotaWaited     uint64 // package talk: requests that waited for the quota service
	LeasedUnitsLost uint64 // package lease: leased units that nobody can spend or return any more

	// Package hold, of rules that hold. The last two are of rules that settle.
	HoldsLost       uint64 // holds that lapsed before their answer, or that Renew found gone: their key was reset
	HoldsRenewed    uint64
	SettledBy       [len(bys)]uint64 // holds settled, by how their cost was known, also if Settle failed
	ChargedOverHold uint64           // units charged beyond what was held, unless Settle failed

	// Package host, of rules that settle by tokens.
	Unread         [usage.Failures]uint64 // answers whose usage could not be read, by why; of usage.None there are none
	UnreadTooMany  uint64                 // answers that came while too many others were read
	UnreadWithheld uint64                 // answers whose body the proxy did not show
}

// Priced counts what the answers of one rule took that charges prices.
type Priced struct {
	// Package hold: units charged, for answers and for holds that lapsed, unless Settle failed.
	ChargedUnits uint64
	Tokens       policy.Tokens // package host, by NoteTokens: of the answers
}

// By says how a settlement knows the cost. It is here because Counts.SettledBy counts by it. Packages settle and host
// say which it is.
type By uint8

// How settlements know the cost.
const (
	ByAnswer   By = iota // the answer says it
	ByEstimate           // it is estimated
	ByCost               // it is what was held
	ByNone               // it is nothing
)

var bys = [...]string{ByAnswer: "answer", ByEstimate: "estimate", ByCost: "cost", ByNone: "none"}

func (b By) String() string { return bys[b] }

// Named counts what became of the requests for which overrides of one name held.
type Named struct {
	Name                          string
	Allowed, Denied, ShadowDenied uint64 // as in Counts
}

// CountsOf is what counts requests for which that override holds. Where none holds, -1, or one whose name is not
// counted, it is memory that nobody reads.
func (m *Set) CountsOf(override int) *Named {
	if override >= 0 {
		if i := m.namedBy[override]; i >= 0 {
			return &m.Named[i]
		}
	}
	return &m.discarded
}

// NoteStored adds what storing a hit has done to the record's page.
func (m *Set) NoteStored(found *state.Findings) {
	if found.Evicted {
		m.Evicted++
	}
	m.WindowResets += uint64(found.Ended)
	if found.Blocked {
		m.BlocksBegun++
	}
}

// NoteTokens adds the tokens for which an answer is charged.
func (m *Set) NoteTokens(t policy.Tokens) {
	p := m.Priced
	if p == nil {
		return
	}
	p.Tokens.Input += t.Input
	p.Tokens.Cached += t.Cached
	p.Tokens.CacheWrite += t.CacheWrite
	p.Tokens.Output += t.Output
}

// Each calls f for every metric of the rule: the name without prefix and unit, and the count. It leaves out what the
// rule cannot have. The order is that in which the operation stats lists them for operators, not that of the fields.
func (m *Set) Each(f func(name string, count uint64)) {
	f("allowed", m.Allowed)
	f("denied", m.Denied)
	f("shadow_denied", m.ShadowDenied)
	f("evicted", m.Evicted)
	f("floor_denied", m.FloorDenied)
	f("full", m.Full)
	f("cas_retries", m.CASRetries)
	f("contention", m.Contention)
	f("errors", m.Errors)
	f("clock_rebased", m.ClockRebased)
	f("not_taken_back", m.NotTakenBack)
	f("window_resets", m.WindowResets)
	f("boundary_spikes", m.BoundarySpikes)
	f("too_long", m.TooLong)
	f("cost_unreadable", m.CostUnreadable)
	if len(m.policy.Limits) > 0 {
		m.eachOfLimits(f)
	}
}

// eachOfLimits is the part of Each that is of rules with limits.
func (m *Set) eachOfLimits(f func(name string, count uint64)) {
	p := m.policy
	if p.Block != nil {
		f("blocks_begun", m.BlocksBegun)
	}
	if p.Scope == policy.ScopeCluster {
		f("quota_waited", m.QuotaWaited)
		f("quota_unavailable", m.QuotaUnavailable)
		f("leased_units_lost", m.LeasedUnitsLost)
	}
	if p.Holds() {
		f("holds_lost", m.HoldsLost)
		f("holds_renewed", m.HoldsRenewed)
	}
	if p.Settle != nil {
		m.eachOfSettle(f)
	}
}

// eachOfSettle is the part of Each that is of rules that settle.
func (m *Set) eachOfSettle(f func(name string, count uint64)) {
	for by, count := range m.SettledBy {
		f("settled_by_"+bys[by], count)
	}
	f("charged_over_hold", m.ChargedOverHold)
	if m.policy.Settle.To.Tokens() {
		for why := usage.UnknownType; int(why) < usage.Failures; why++ {
			f("unread_"+why.String(), m.Unread[why])
		}
		f("unread_too_many", m.UnreadTooMany)
		f("unread_withheld", m.UnreadWithheld)
	}
	if p := m.Priced; p != nil {
		f("charged_units", p.ChargedUnits)
		f("tokens_input", uint64(p.Tokens.Input))
		f("tokens_cached", uint64(p.Tokens.Cached))
		f("tokens_cache_write", uint64(p.Tokens.CacheWrite))
		f("tokens_output", uint64(p.Tokens.Output))
	}
}
