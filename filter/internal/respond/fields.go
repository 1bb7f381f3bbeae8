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

	// Values under construction.
	policies, limits, quotas []byte // of the windows
	value, body              []byte // of a denial's response
}

// Append appends the response headers of a verdict: for a denial Retry-After and the headers of
// its response, and the fields of the style. The fields describe the rule that denied, or all
// rules that matched an allowed request.
func (f *Fields) Append(dst []Field, v *decide.Verdict) []Field {
	if seconds, ok := v.RetryAfter(); ok {
		dst = append(dst, Field{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	if !v.Allowed {
		dst = f.appendResponse(dst, v)
	}
	return f.appendWindows(dst, v)
}

// appendWindows appends the fields of the style for the windows of the rule that denied, or of all rules.
// Clients learn nothing of shadow rules.
//
// RateLimit-Policy and RateLimit have one item for each window: see package fields. The
// X-RateLimit fields of draft 03 have the tightest window. Its limit is followed by the quota
// policies of all windows, each with the w that the draft requires.
func (f *Fields) appendWindows(dst []Field, v *decide.Verdict) []Field {
	ietf := f.Style == policy.HeadersIETF || f.Style == policy.HeadersBoth
	xRateLimit := f.Style == policy.HeadersXRateLimit || f.Style == policy.HeadersBoth
	if !ietf && !xRateLimit {
		return dst
	}
	policies, limits := f.policies[:0], f.limits[:0]
	quotas := f.quotas[:0]
	var (
		tightest *limit.Window
		least    uint32 // units left, in the tightest window
		endsIn   int64
	)
	for _, s := range v.Subjects {
		view, known := s.View()
		if !known || s.Shadow || !v.Allowed && s != v.Denying {
			continue
		}
		blocked := s.BlockedNs(v.Now)
		for i := range s.Rule.Policy.Limits {
			w, u := view.Window(i)
			if w.Unlimited {
				continue
			}
			left, reset := view.Remaining(i), fields.Seconds(w.ResetWith(u, s.Record.Now, view.Held())-v.Now)
			if blocked > 0 { // the windows do not matter
				left, reset = 0, fields.Seconds(blocked)
			}
			if tightest == nil || left < least {
				tightest = w
				least, endsIn = left, reset
			}
			if ietf {
				n := fields.Window{
					Rule: s.Rule.Policy.Name, Override: s.OverrideName(),
					Name: s.Rule.Policy.Limits[i].Name, Index: i,
					Only: len(s.Rule.Policy.Limits) == 1,
				}
				policies = n.AppendPolicy(policies, w, s.Record.Now)
				limits = n.AppendLimit(limits, w, left, reset)
			}
			if xRateLimit {
				quotas = appendQuota(quotas, s, w)
			}
		}
	}
	f.policies, f.limits = policies, limits
	f.quotas = quotas
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

func appendQuota(b []byte, s *decide.Subject, w *limit.Window) []byte {
	b = strconv.AppendUint(append(b, ", "...), uint64(w.Limit), 10)
	if length := w.LengthNs(s.Record.Now); length > 0 {
		b = strconv.AppendInt(append(b, ";w="...), fields.Seconds(length), 10)
	}
	if w.Max() != w.Limit { // a token bucket, as in the draft's example
		b = strconv.AppendUint(append(b, ";burst="...), uint64(w.Max()), 10)
	}
	return b
}
