// Package describe writes down what the engine decided: response headers and
// bodies for clients, a word for access logs, JSON for people and tools.
//
// Its invariant: it reads verdicts and changes nothing. Keys reach only the
// JSON; clients and access logs never see them.
package describe

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// AppendReport appends the whole verdict as one JSON object, times in
// nanoseconds:
//
//	{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[{"rule":"r",
//	 "key":["alice"],"mode":"enforced","allowed":false,"reason":"limit",
//	 "remaining":0,"windows":[{"limit":10,"per_ns":1000,"used":10,
//	 "remaining":0,"reset_ns":5}]}]}
//
// retry_after_ns is -1 where no wait would help; reset_ns counts from now; a
// key part that the request lacks is null.
func AppendReport(b []byte, v *engine.Verdict) []byte {
	b = append(appendOutcome(b, v), `,"rules":[`...)
	for i, a := range v.Attempts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAttempt(b, a, v.Now)
	}
	return append(b, "]}"...)
}

// appendOutcome begins a JSON object with the outcome over all rules.
func appendOutcome(b []byte, v *engine.Verdict) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), v.Allowed)
	if !v.Allowed {
		b = policy.AppendString(append(b, `,"denied_by":`...), v.DeniedBy().Name)
		b = strconv.AppendInt(append(b, `,"retry_after_ns":`...), v.RetryNs, 10)
	}
	return b
}

func appendAttempt(b []byte, a *engine.Attempt, now int64) []byte {
	b = policy.AppendString(append(b, `{"rule":`...), a.Rule().Name)
	b = append(b, `,"key":[`...)
	for i := range a.Key.Parts {
		if i > 0 {
			b = append(b, ',')
		}
		if part := &a.Key.Parts[i]; part.Present {
			b = policy.AppendString(b, part.Whole())
		} else {
			b = append(b, "null"...)
		}
	}
	b = appendDecision(append(b, ']'), a)
	if a.Known && len(a.Rule().Limits) > 0 {
		if w, u := a.Window(a.Tightest()); !w.Unlimited {
			b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(w.Remaining(u, a.Now())), 10)
		}
	}
	return append(appendWindows(b, a, now), '}')
}

// appendDecision appends what the rule decided.
func appendDecision(b []byte, a *engine.Attempt) []byte {
	if a.Shadow {
		b = append(b, `,"mode":"shadow","allowed":`...)
	} else {
		b = append(b, `,"mode":"enforced","allowed":`...)
	}
	b = strconv.AppendBool(b, a.Allowed)
	if a.Reason != "" {
		b = policy.AppendString(append(b, `,"reason":`...), string(a.Reason))
	}
	return b
}

func appendWindows(b []byte, a *engine.Attempt, now int64) []byte {
	b = append(b, `,"windows":[`...)
	if a.Known {
		for i := range a.Rule().Limits {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendWindow(b, a, i, now)
		}
	}
	return append(b, ']')
}

func appendWindow(b []byte, a *engine.Attempt, i int, now int64) []byte {
	w, u := a.Window(i)
	b = append(b, '{')
	if name := a.Rule().Limits[i].Name; name != "" {
		b = append(policy.AppendString(append(b, `"name":`...), name), ',')
	}
	if w.Unlimited {
		b = append(b, `"unlimited":true`...)
	} else {
		b = strconv.AppendUint(append(b, `"limit":`...), uint64(w.Max()), 10)
	}
	b = strconv.AppendInt(append(b, `,"per_ns":`...), w.PeriodNs, 10)
	b = strconv.AppendUint(append(b, `,"used":`...), uint64(w.Count(u, a.Now())), 10)
	if !w.Unlimited {
		b = strconv.AppendUint(append(b, `,"remaining":`...), uint64(w.Remaining(u, a.Now())), 10)
	}
	b = strconv.AppendInt(append(b, `,"reset_ns":`...), max(0, w.Reset(u, a.Now())-now), 10)
	return append(b, '}')
}
