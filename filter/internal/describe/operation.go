package describe

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// AppendResult appends the answer to an operation as JSON: a verdict as
// AppendReport writes it for hit and peek, statistics for stats, otherwise a
// value. clean has no windows.
func AppendResult(b []byte, r *engine.Result) []byte {
	switch {
	case r.Verdict != nil:
		return AppendReport(b, r.Verdict)
	case r.Rules != nil:
		return appendStats(b, r.Rules)
	}
	result := answer.Answer{Value: &r.Value}
	if r.Attempt != nil {
		result.Windows = windows(r.Attempt, r.Now)
	}
	return result.Append(b)
}

func appendStats(b []byte, rules []engine.RuleStats) []byte {
	stats := make([]answer.Stats, len(rules))
	for i := range rules {
		s := &rules[i]
		stats[i] = answer.Stats{
			Rule: s.Rule.Name, Keys: s.Keys, Capacity: uint64(s.Rule.Capacity), Slots: s.Slots, Pages: s.Pages,
			Bytes: s.Bytes,
		}
	}
	return answer.AppendStats(b, stats, func(i int, yield func(name string, n uint64)) {
		for _, m := range rules[i].Metrics {
			yield(m.Name, m.N)
		}
	})
}
