package describe

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendResult appends the answer to an operation: a verdict as AppendReport
// writes it for hit and peek, the rules for stats, otherwise
//
//	{"value":5,"windows":[…]}
//
// with windows as in a verdict; clean has none.
func AppendResult(b []byte, r *engine.Result) []byte {
	switch {
	case r.Verdict != nil:
		return AppendReport(b, r.Verdict)
	case r.Rules != nil:
		return appendStats(b, r.Rules)
	}
	b = strconv.AppendInt(append(b, `{"value":`...), r.Value, 10)
	if r.Attempt != nil {
		b = appendWindows(b, r.Attempt, r.Now)
	}
	return append(b, '}')
}

func appendStats(b []byte, rules []engine.RuleStats) []byte {
	b = append(b, `{"rules":[`...)
	for i := range rules {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRuleStats(b, &rules[i])
	}
	return append(b, "]}"...)
}

func appendRuleStats(b []byte, s *engine.RuleStats) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), s.Rule.Name)
	for _, c := range [...]engine.Count{
		{Name: "keys", N: s.Keys}, {Name: "capacity", N: uint64(s.Rule.Capacity)},
		{Name: "slots", N: s.Slots}, {Name: "buckets", N: s.Pages}, {Name: "bytes", N: s.Bytes},
	} {
		b = appendCount(append(b, ','), c)
	}
	b = append(b, `,"metrics":{`...)
	for i, m := range s.Metrics {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCount(b, m)
	}
	return append(b, "}}"...)
}

func appendCount(b []byte, c engine.Count) []byte {
	return strconv.AppendUint(append(policy.AppendString(b, c.Name), ':'), c.N, 10)
}
