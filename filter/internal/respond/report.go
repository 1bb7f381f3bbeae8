// Package respond writes what the engine decided: response headers and bodies for clients, a
// word for access logs, JSON for people and tools.
//
// Its invariant: it reads verdicts and changes nothing. Keys reach only the JSON; clients and
// access logs never see them. It must never import a source of units.
//
// For clients: fields.go writes the headers, response.go those of a denial and its body, upstream.go joins
// headers with the upstream's, and usage.go tells a client its usage. For access logs: word.go. For people
// and tools: report.go.
package respond

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// AppendReport appends the whole verdict as JSON, a result.Result.
func AppendReport(b []byte, v *decide.Verdict) []byte {
	report := result.Result{
		Allowed: &v.Allowed, Exempt: v.Exempt, IsUsage: v.IsLook, Rules: make([]result.Rule, len(v.Subjects)),
	}
	if !v.Allowed {
		report.DeniedBy, report.RetryNs = v.DeniedBy().Name, &v.RetryNs
	}
	for i, s := range v.Subjects {
		report.Rules[i] = decision(s, v.Now)
	}
	return report.Append(b)
}

// AppendBriefs appends what each rule that matched decided, each a result.Brief.
func AppendBriefs(b []byte, v *decide.Verdict) []byte {
	for _, s := range v.Subjects {
		b = result.AppendBrief(b, s.Rule.Policy.Name, s.Reason(), !s.Denies(), s.Shadow, len(s.Key.Parts))
		for i := range s.Key.Parts {
			if part := &s.Key.Parts[i]; part.Present {
				b = result.AppendBriefPart(b, part.Label, part.Text)
			} else {
				b = result.AppendBriefMissing(b)
			}
		}
	}
	return b
}

// decision returns what the rule decided.
func decision(s *decide.Subject, now int64) result.Rule {
	r := result.Rule{
		Rule:     s.Rule.Policy.Name,
		Override: s.OverrideName(),
		Key:      make([]*string, len(s.Key.Parts)),
		Mode:     Mode(s),
		Allowed:  !s.Denies(),
		Reason:   s.Reason(),
		Windows:  Windows(s, now),
		Held:     Held(s),

		BlockedNs: s.BlockedNs(now),
	}
	for i := range s.Key.Parts {
		if part := &s.Key.Parts[i]; part.Present {
			text := part.Whole()
			r.Key[i] = &text
		}
	}
	if view, known := s.View(); known && len(r.Windows) > 0 {
		r.Remaining = r.Windows[view.Tightest()].Remaining
	}
	return r
}

// Held returns what requests of the rule's key hold, nil for a rule that holds nothing.
func Held(s *decide.Subject) *uint32 {
	view, known := s.View()
	if !known || !s.Rule.Policy.Holds() {
		return nil
	}
	held := view.Held()
	return &held
}

// Mode returns the rule's mode for this key. In a policy the word is enforce.
func Mode(s *decide.Subject) string {
	if s.Shadow {
		return result.Shadow
	}
	return result.Enforced
}

// RuleMode returns what Mode is of the rule's keys.
func RuleMode(r *policy.Rule) string {
	switch {
	case r.Mode == policy.ModeShadow || r.EnforcePercent == 0:
		return result.Shadow
	case r.EnforcePercent < 100:
		return result.PartlyEnforced
	}
	return result.Enforced
}

// Windows returns the rule's limits in policy order, none if the usage is unknown.
func Windows(s *decide.Subject, now int64) []result.Window {
	view, known := s.View()
	if !known {
		return []result.Window{}
	}
	all := make([]result.Window, len(s.Rule.Policy.Limits))
	for i := range all {
		w, _ := view.Window(i)
		used, left, resetNs := view.Told(i, now)
		all[i] = result.Window{
			Name:      s.Rule.Policy.Limits[i].Name,
			Unlimited: w.Unlimited,
			PerNs:     w.LengthNs(s.Record.Now),
			Months:    w.Months(),
			Used:      used,
			ResetNs:   resetNs,
		}
		if !w.Unlimited {
			all[i].SetLimit(w, left)
			all[i].SetLimitFrom(s.Rule.Policy, i, &s.Subject)
		}
	}
	return all
}
