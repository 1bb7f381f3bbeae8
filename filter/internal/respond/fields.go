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

// shown is a window that clients are shown.
type shown struct {
	subject *decide.Subject
	window  *limit.Window // nil: there is none
	index   int           // in the policy
	left    uint32
	reset   int64 // seconds
}

// appendWindows appends the fields of the style for the windows of the rule that denied, or of all rules.
// Clients learn nothing of shadow rules.
func (f *Fields) appendWindows(dst []Field, v *decide.Verdict) []Field {
	ietf := f.Style == policy.HeadersIETF || f.Style == policy.HeadersBoth
	xRateLimit := f.Style == policy.HeadersXRateLimit || f.Style == policy.HeadersBoth
	if !ietf && !xRateLimit {
		return dst
	}
	f.policies, f.limits = f.policies[:0], f.limits[:0]
	f.quotas = f.quotas[:0]
	var tightest shown
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
			one := shown{subject: s, window: w, index: i}
			if blocked > 0 { // the windows do not matter
				one.reset = fields.Seconds(blocked)
			} else {
				one.left, one.reset = view.Remaining(i), fields.Seconds(w.ResetWith(u, s.Record.Now, view.Held())-v.Now)
			}
			if tightest.window == nil || one.left < tightest.left {
				tightest = one
			}
			if ietf {
				f.addIETF(one)
			}
			if xRateLimit {
				f.quotas = appendQuota(f.quotas, s, w)
			}
		}
	}
	if tightest.window == nil {
		return dst
	}
	if ietf {
		dst = append(dst, Field{"ratelimit-policy", string(f.policies)}, Field{"ratelimit", string(f.limits)})
	}
	if xRateLimit {
		dst = f.appendXRateLimit(dst, tightest)
	}
	return dst
}

// addIETF adds the window's items to RateLimit-Policy and RateLimit: see package fields.
func (f *Fields) addIETF(one shown) {
	p := one.subject.Rule.Policy
	n := fields.Window{
		Rule: p.Name, Override: one.subject.OverrideName(),
		Name: p.Limits[one.index].Name, Index: one.index,
		Only: len(p.Limits) == 1,
	}
	f.policies = n.AppendPolicy(f.policies, one.window, one.subject.Record.Now)
	f.limits = n.AppendLimit(f.limits, one.window, one.left, one.reset)
}

// appendXRateLimit appends the X-RateLimit fields of draft 03, which have the tightest window. Its limit
// is followed by the quota policies of all windows, each with the w that the draft requires.
func (f *Fields) appendXRateLimit(dst []Field, tightest shown) []Field {
	return append(dst,
		Field{"x-ratelimit-limit", strconv.FormatUint(uint64(tightest.window.Max()), 10) + string(f.quotas)},
		Field{"x-ratelimit-remaining", strconv.FormatUint(uint64(tightest.left), 10)},
		Field{"x-ratelimit-reset", strconv.FormatInt(tightest.reset, 10)})
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
