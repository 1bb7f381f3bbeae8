// Package respond writes what the engine decided: response headers and bodies for clients, a
// word for access logs, JSON for people and tools.
//
// Its invariant: it reads verdicts and changes nothing. Keys reach only the JSON; clients and
// access logs never see them. It must never import a source of units.
package respond

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// AppendReport appends the whole verdict as JSON, a result.Result.
func AppendReport(b []byte, v *decide.Verdict) []byte {
	report := result.Result{Allowed: &v.Allowed, Exempt: v.Exempt, Rules: make([]result.Rule, len(v.Subjects))}
	if !v.Allowed {
		report.DeniedBy, report.RetryNs = v.DeniedBy().Name, &v.RetryNs
	}
	for i, a := range v.Subjects {
		report.Rules[i] = decision(a, v.Now)
	}
	return report.Append(b)
}

// AppendBriefs appends what each rule that matched decided, each an answer.Brief.
func AppendBriefs(b []byte, v *decide.Verdict) []byte {
	for _, a := range v.Subjects {
		b = result.AppendBrief(b, a.Rule.Policy.Name, a.Reason(), a.Allowed, a.Shadow, len(a.Key.Parts))
		for i := range a.Key.Parts {
			if part := &a.Key.Parts[i]; part.Present {
				b = result.AppendBriefPart(b, part.Label, part.Text)
			} else {
				b = result.AppendBriefMissing(b)
			}
		}
	}
	return b
}

// decision returns what the rule decided.
func decision(a *decide.Subject, now int64) result.Rule {
	r := result.Rule{
		Rule:     a.Rule.Policy.Name,
		Override: a.OverrideName(),
		Key:      make([]*string, len(a.Key.Parts)),
		Mode:     Mode(a),
		Allowed:  a.Allowed,
		Reason:   a.Reason(),
		Windows:  Windows(a, now),
		Held:     Held(a),
	}
	for i := range a.Key.Parts {
		if part := &a.Key.Parts[i]; part.Present {
			text := part.Whole()
			r.Key[i] = &text
		}
	}
	if len(r.Windows) > 0 {
		r.Remaining = r.Windows[a.Tightest()].Remaining
	}
	return r
}

// Held returns what requests of the rule's key hold, nil for a rule that holds nothing.
func Held(a *decide.Subject) *uint32 {
	if !a.Known || !a.Rule.Policy.Holds() {
		return nil
	}
	held := a.Held()
	return &held
}

// Mode returns the rule's mode for this key. In a policy the word is enforce.
func Mode(a *decide.Subject) string {
	if a.Shadow {
		return "shadow"
	}
	return "enforced"
}

// Windows returns the rule's limits in policy order, none if the usage is unknown.
func Windows(a *decide.Subject, now int64) []result.Window {
	if !a.Known {
		return []result.Window{}
	}
	all := make([]result.Window, len(a.Rule.Policy.Limits))
	for i := range all {
		w, u := a.Window(i)
		all[i] = result.Window{
			Name:      a.Rule.Policy.Limits[i].Name,
			Unlimited: w.Unlimited,
			PerNs:     w.LengthNs(a.Now()),
			Months:    w.Months(),
			Used:      w.Count(u, a.Now()),
			ResetNs:   max(0, w.Reset(u, a.Now())-now),
		}
		if !w.Unlimited {
			all[i].SetLimit(w, a.Remaining(i))
			all[i].From(a.Rule.Policy, i, &a.Subject)
		}
	}
	return all
}
