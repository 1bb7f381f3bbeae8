package engine

// Metrics counts what became of one rule's requests since the engine was made.
type Metrics struct {
	Allowed        uint64 // requests the rule matched that went through
	Denied         uint64 // requests this rule denied
	ShadowDenied   uint64 // requests it would have denied, were it enforced
	Evicted        uint64 // live records that made room for others
	FloorDenied    uint64 // denials of keys that started from a page's floor
	Full           uint64 // hits for which on_full decided: deny or allow
	CASRetries     uint64 // compare-and-swaps that another worker won
	Contention     uint64 // hits that ran out of retries
	Errors         uint64 // decisions that a failing host call prevented
	ClockRebased   uint64 // records of a wild clock, moved to the present
	NotRefunded    uint64 // charges of denied requests that had to stay
	WindowResets   uint64 // windows that had ended when their key was counted again
	BoundarySpikes uint64 // units around a window's boundary beyond its limit; see spikes
	TooLong        uint64 // requests with a value too long for a regular expression
	CostUnreadable uint64 // requests whose cost is no plain number, or not one number

	// Of rules of scope cluster only.
	Waited      uint64 // requests that waited for the quota service
	Unavailable uint64 // requests for which on_unavailable decided
	LeaseLost   uint64 // leased units that could not go back
}

// namedMetrics counts what became of the requests for which overrides of one name held.
type namedMetrics struct {
	name                          string
	Allowed, Denied, ShadowDenied uint64 // as in Metrics
}

// Series is what one metric counts.
type Series struct {
	Domain, Rule string
	Override     string // empty: all requests of the rule
	Metric       string // without prefix and unit
}

// each calls f for every metric of the rule in a stable order: the name without
// prefix and unit, and the count.
func (r *rule) eachMetric(f func(name string, count uint64)) {
	m := &r.metrics
	for _, c := range [...]struct {
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
	} {
		f(c.name, c.count)
	}
	if r.leases == nil {
		return
	}
	for _, c := range [...]struct {
		name  string
		count uint64
	}{
		{"quota_waited", m.Waited}, {"quota_unavailable", m.Unavailable}, {"leased_units_lost", m.LeaseLost},
	} {
		f(c.name, c.count)
	}
}

// EachMetric calls f for every metric of every rule, in a stable order.
func (e *Engine) EachMetric(f func(s Series, count uint64)) {
	for i := range e.rules {
		r := &e.rules[i]
		s := Series{Domain: e.policy.Domain, Rule: r.policy.Name}
		r.eachMetric(func(name string, count uint64) {
			s.Metric = name
			f(s, count)
		})
		for j := range r.named {
			n := &r.named[j]
			s.Override = n.name
			for _, c := range [...]struct {
				name  string
				count uint64
			}{{"allowed", n.Allowed}, {"denied", n.Denied}, {"shadow_denied", n.ShadowDenied}} {
				s.Metric = c.name
				f(s, c.count)
			}
		}
	}
}
