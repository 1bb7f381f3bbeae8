package respond

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Field is one response header.
type Field struct{ Name, Value string }

// Fields writes the response headers of verdicts. It uses the same memory for each verdict.
type Fields struct {
	Style policy.Headers

	text [3][]byte // header values under construction
}

// Append appends the response headers of a verdict: for a denial Retry-After and the headers of
// its response, and the fields of the style. The fields describe the rule that denied, or all
// rules that matched an allowed request.
func (f *Fields) Append(dst []Field, v *decide.Verdict) []Field {
	if seconds, ok := v.RetryAfter(); ok {
		dst = append(dst, Field{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	if v.Allowed {
		return f.appendWindows(dst, v.Subjects, v.Now)
	}
	return f.appendWindows(f.appendResponse(dst, v), v.Subjects[v.Denied:v.Denied+1], v.Now)
}

// appendWindows appends the fields of the style for the windows of rules. Clients learn nothing of
// shadow rules.
//
// RateLimit-Policy and RateLimit have one item for each window: see package fields. The
// X-RateLimit fields of draft 03 have the tightest window. Its limit is followed by the quota
// policies of all windows, each with the w that the draft requires.
func (f *Fields) appendWindows(dst []Field, subjects []*decide.Subject, now int64) []Field {
	ietf := f.Style == policy.HeadersIETF || f.Style == policy.HeadersBoth
	xRateLimit := f.Style == policy.HeadersXRateLimit || f.Style == policy.HeadersBoth
	if !ietf && !xRateLimit {
		return dst
	}
	policies, limits := f.text[0][:0], f.text[1][:0]
	quotas := f.text[2][:0]
	var (
		tightest *limit.Window
		least    uint32 // units left, in the tightest window
		endsIn   int64
	)
	for _, a := range subjects {
		if !a.Known || a.Shadow {
			continue
		}
		for i := range a.Rule.Policy.Limits {
			w, u := a.Window(i)
			if w.Unlimited {
				continue
			}
			left, reset := a.Remaining(i), fields.Seconds(w.ResetWith(u, a.Now(), a.Held())-now)
			if tightest == nil || left < least {
				tightest = w
				least, endsIn = left, reset
			}
			if ietf {
				n := fields.Window{
					Rule:     a.Rule.Policy.Name,
					Override: a.OverrideName(),
					Name:     a.Rule.Policy.Limits[i].Name,
					Index:    i,
					Only:     len(a.Rule.Policy.Limits) == 1,
				}
				policies = n.AppendPolicy(policies, w, a.Now())
				limits = n.AppendLimit(limits, w, left, reset)
			}
			if xRateLimit {
				quotas = appendQuota(quotas, a, w)
			}
		}
	}
	f.text = [3][]byte{policies, limits, quotas}
	if tightest == nil {
		return dst
	}
	if ietf {
		dst = append(dst, Field{"ratelimit-policy", string(policies)}, Field{"ratelimit", string(limits)})
	}
	if xRateLimit {
		dst = append(dst, Field{"x-ratelimit-limit", strconv.FormatUint(uint64(tightest.Max()), 10) + string(quotas)},
			Field{"x-ratelimit-remaining", strconv.FormatUint(uint64(least), 10)},
			Field{"x-ratelimit-reset", strconv.FormatInt(endsIn, 10)})
	}
	return dst
}

func appendQuota(b []byte, a *decide.Subject, w *limit.Window) []byte {
	b = strconv.AppendUint(append(b, ", "...), uint64(w.Limit), 10)
	if length := w.LengthNs(a.Now()); length > 0 {
		b = strconv.AppendInt(append(b, ";w="...), fields.Seconds(length), 10)
	}
	if w.Max() != w.Limit { // a token bucket, as in the draft's example
		b = strconv.AppendUint(append(b, ";burst="...), uint64(w.Max()), 10)
	}
	return b
}
