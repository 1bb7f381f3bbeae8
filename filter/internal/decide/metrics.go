package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Metrics counts what became of one rule's requests since the engine was made.
type Metrics struct {
	// Verdict.note counts a request once, however often its rules are checked.
	Allowed      uint64 // requests the rule matched that went through
	Denied       uint64 // requests this rule denied
	ShadowDenied uint64 // requests it would have denied, were it enforced
	FloorDenied  uint64 // denials of keys that started from a page's floor
	Unavailable  uint64 // of rules of scope cluster only: requests for which on_unavailable decided

	// Full counts requests for which on_full decided, deny or allow: note counts them. It also counts hits that
	// the rule denied by its limits, and of which a full page kept nothing: keepDenied counts these.
	Full uint64

	// The others count events, each where it happens: one request may have several.
	Evicted        uint64 // live records that made room for others
	CASRetries     uint64 // compare-and-swaps that another worker won
	Contention     uint64 // hits that ran out of retries
	Errors         uint64 // decisions that a failing host call prevented
	ClockRebased   uint64 // records of a wild clock, moved to the present
	NotRefunded    uint64 // charges of denied requests that had to stay; the metric keeps its old name, not_taken_back
	WindowResets   uint64 // windows that had ended when their key was counted again
	BoundarySpikes uint64 // units around a window's boundary beyond its limit; see spikes
	TooLong        uint64 // requests with a value too long for a regular expression
	CostUnreadable uint64 // requests whose cost is no plain number, or not one number

	Blocks uint64 // of rules with a block only: how many were begun

	// Of rules that hold only.
	Settled      [len(bys)]uint64 // holds settled, by what they were made of
	ChargedOver  uint64           // units charged beyond what was held
	HoldsLost    uint64           // holds that lapsed before their answer
	HoldsRenewed uint64
	Unread       [usage.Failures]uint64 // answers whose usage could not be read, by why
	Unscanned    uint64                 // answers that came while too many others were read
	Withheld     uint64                 // answers whose body the proxy did not show

	// Of rules of scope cluster only.
	Waited    uint64 // requests that waited for the quota service
	LeaseLost uint64 // leased units that could not go back
}

// Priced counts what the answers of one rule took that charges prices.
type Priced struct {
	Units  uint64        // charged, for answers and for holds that lapsed
	Tokens policy.Tokens // of the answers
}

// NoteTokens adds the tokens for which an answer is charged to the metrics.
func (r *Rule) NoteTokens(t policy.Tokens) {
	p := r.Priced
	if p == nil {
		return
	}
	p.Tokens.Input += t.Input
	p.Tokens.Cached += t.Cached
	p.Tokens.CacheWrite += t.CacheWrite
	p.Tokens.Output += t.Output
}

// Named counts what became of the requests for which overrides of one name held.
type Named struct {
	Name                          string
	Allowed, Denied, ShadowDenied uint64 // as in Metrics
}

// Each calls f for every metric of the rule in a stable order: the name without
// prefix and unit, and the count.
func (r *Rule) Each(f func(name string, count uint64)) {
	m := &r.Metrics
	all := [...]struct {
		name  string
		count uint64
	}{
		{"allowed", m.Allowed}, {"denied", m.Denied}, {"shadow_denied", m.ShadowDenied},
		{"evicted", m.Evicted}, {"floor_denied", m.FloorDenied}, {"full", m.Full},
		{"cas_retries", m.CASRetries}, {"contention", m.Contention},
		{"errors", m.Errors}, {"clock_rebased", m.ClockRebased},
		{"not_taken_back", m.NotRefunded}, {"window_resets", m.WindowResets},
		{"boundary_spikes", m.BoundarySpikes},
		{"too_long", m.TooLong},
		{"cost_unreadable", m.CostUnreadable},
	}
	for i := range all {
		f(all[i].name, all[i].count)
	}
	if r.Source == nil {
		return
	}
	if r.Policy.Block != nil {
		f("blocks_begun", m.Blocks)
	}
	if r.Policy.Scope == policy.ScopeCluster {
		f("quota_waited", m.Waited)
		f("quota_unavailable", m.Unavailable)
		f("leased_units_lost", m.LeaseLost)
	}
	if r.Policy.Holds() {
		f("holds_lost", m.HoldsLost)
		f("holds_renewed", m.HoldsRenewed)
	}
	if r.Policy.Settle == nil {
		return
	}
	for by, count := range m.Settled {
		f("settled_by_"+bys[by], count)
	}
	f("charged_over_hold", m.ChargedOver)
	if r.Policy.Settle.To.Tokens() {
		for why := usage.UnknownType; int(why) < usage.Failures; why++ {
			f("unread_"+why.String(), m.Unread[why])
		}
		f("unread_too_many", m.Unscanned)
		f("unread_withheld", m.Withheld)
	}
	if p := r.Priced; p != nil {
		f("charged_units", p.Units)
		f("tokens_input", uint64(p.Tokens.Input))
		f("tokens_cached", uint64(p.Tokens.Cached))
		f("tokens_cache_write", uint64(p.Tokens.CacheWrite))
		f("tokens_output", uint64(p.Tokens.Output))
	}
}
