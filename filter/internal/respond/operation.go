package respond

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendResult appends the answer to an operation as JSON: a verdict as
// AppendReport writes it for hit and peek, statistics for stats, the keys denied most
// for top, otherwise a value. clean has no windows.
func AppendResult(b []byte, r *engine.Result) []byte {
	switch {
	case r.Verdict != nil:
		return AppendReport(b, r.Verdict)
	case r.Rules != nil:
		return appendStats(b, r.Rules)
	case r.Denials != nil:
		return answer.AppendDenials(b, ruleDenials(r.Denials))
	}
	result := answer.Answer{Value: &r.Value}
	if r.Subject != nil {
		result.Silent, result.Windows = silent(r.Subject), windows(r.Subject, r.Now)
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

func ruleDenials(rules []engine.RuleDenials) []answer.Denials {
	list := make([]answer.Denials, len(rules))
	for i := range rules {
		r := &rules[i]
		list[i] = answer.Denials{Rule: r.Rule.Name, Mode: ruleMode(r.Rule), SinceNs: r.SinceNs, Keys: make([]answer.DeniedKey, len(r.Keys)), Rest: r.Rest}
		for j := range r.Keys {
			k := &r.Keys[j]
			list[i].Keys[j] = answer.DeniedKey{Denied: k.Denied, Error: k.Error}
			if of := &list[i].Keys[j]; r.Plain {
				of.Key, of.Cut = denials.KeyOf(k.Text())
				of.Cut = of.Cut || len(of.Key) < len(r.Rule.Key)
			} else {
				of.Hash = hexadecimal(k.Text())
			}
		}
	}
	return list
}

// ruleMode is what mode is of a rule's subjects.
func ruleMode(r *policy.Rule) string {
	switch {
	case r.Mode == policy.ModeShadow || r.EnforcePercent == 0:
		return "shadow"
	case r.EnforcePercent < 100:
		return answer.PartlyEnforced
	}
	return "enforced"
}

// hexadecimal is encoding/hex without package fmt, which that imports.
func hexadecimal(b []byte) string {
	const digits = "0123456789abcdef"
	text := make([]byte, 0, 2*len(b))
	for _, c := range b {
		text = append(text, digits[c>>4], digits[c&15])
	}
	return string(text)
}
