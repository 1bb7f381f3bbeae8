package engine

// Metrics counts what became of one rule's requests since the engine was made.
type Metrics struct {
	Allowed      uint64 // requests the rule matched that went through
	Denied       uint64 // requests this rule denied
	Evicted      uint64 // live records that made room for others
	FloorDenied  uint64 // denials of keys that started from a bucket's floor
	Full         uint64 // hits for which on_full decided: deny or allow
	CASRetries   uint64 // compare-and-swaps that somebody else won
	Contention   uint64 // hits whose retries ran out
	Errors       uint64 // decisions that a failing host call prevented
	ClockRebased uint64 // records of a wild clock, moved to the present
	NotTakenBack uint64 // charges of denied requests that had to stay
}

// EachMetric calls f for every metric of every rule, in a stable order: the
// name without prefix and unit, and its count so far.
func (e *Engine) EachMetric(f func(rule, name string, count uint64)) {
	for i := range e.rules {
		r := &e.rules[i]
		m := &r.metrics
		for _, c := range [...]struct {
			name  string
			count uint64
		}{
			{"allowed", m.Allowed}, {"denied", m.Denied},
			{"evicted", m.Evicted}, {"floor_denied", m.FloorDenied},
			{"full", m.Full},
			{"cas_retries", m.CASRetries}, {"contention", m.Contention},
			{"errors", m.Errors}, {"clock_rebased", m.ClockRebased},
			{"not_taken_back", m.NotTakenBack},
		} {
			f(r.policy.Name, c.name, c.count)
		}
	}
}
