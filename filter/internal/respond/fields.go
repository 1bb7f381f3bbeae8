package respond

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Field is one response header.
type Field struct{ Name, Value string }

// Fields writes the response headers of verdicts. It keeps memory from verdict
// to verdict.
type Fields struct {
	Style policy.Headers

	text [2][]byte // header values under construction
}

// Append appends the response headers of a verdict: on a denial Retry-After and
// those of its response, and the fields of the style. Those describe the denying
// rule of a denial, or every rule that matched an allowed request.
func (f *Fields) Append(dst []Field, v *decide.Verdict) []Field {
	if seconds, ok := v.RetryAfter(); ok {
		dst = append(dst, Field{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	if !v.Allowed {
		dst = f.appendResponse(dst, v)
	}
	ietf := f.Style == policy.HeadersIETF || f.Style == policy.HeadersBoth
	xRateLimit := f.Style == policy.HeadersXRateLimit || f.Style == policy.HeadersBoth
	if !ietf && !xRateLimit || !v.Matched() {
		return dst
	}
	subjects := v.Subjects
	if !v.Allowed {
		subjects = subjects[v.Denied : v.Denied+1]
	}
	if ietf {
		dst = f.appendIETF(dst, subjects, v.Now)
	}
	if xRateLimit {
		dst = f.appendXRateLimit(dst, subjects, v.Now)
	}
	return dst
}

// appendIETF writes RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10: one item for each window, with quota
// q and window w, remaining r and seconds to reset t. There is no w for a window
// that is no whole number of seconds, nor for a token bucket whose burst differs
// from what it gains in a period. Clients learn nothing of shadow rules.
func (f *Fields) appendIETF(dst []Field, subjects []*decide.Subject, now int64) []Field {
	policies, limits := f.text[0][:0], f.text[1][:0]
	for _, a := range subjects {
		if !a.Known || a.Shadow {
			continue
		}
		for j := range a.Rule.Policy.Limits {
			w, u := a.Window(j)
			if w.Unlimited {
				continue
			}
			policies = appendPolicy(policies, a, j, w)
			limits = appendPolicyName(separate(limits), a, j)
			limits = strconv.AppendUint(append(limits, ";r="...), uint64(w.Remaining(u, a.Now())), 10)
			limits = strconv.AppendInt(append(limits, ";t="...), resetSeconds(a, w, u, now), 10)
		}
	}
	f.text = [2][]byte{policies, limits}
	if len(policies) == 0 {
		return dst
	}
	return append(dst, Field{"ratelimit-policy", string(policies)}, Field{"ratelimit", string(limits)})
}

func appendPolicy(b []byte, a *decide.Subject, i int, w *limit.Window) []byte {
	b = appendPolicyName(separate(b), a, i)
	b = strconv.AppendUint(append(b, ";q="...), uint64(w.Max()), 10)
	if length := w.LengthNs(a.Now()); length%1_000_000_000 == 0 && w.Max() == w.Limit {
		b = strconv.AppendInt(append(b, ";w="...), length/1_000_000_000, 10)
	}
	return b
}

func appendQuota(b []byte, a *decide.Subject, w *limit.Window) []byte {
	b = strconv.AppendUint(append(b, ", "...), uint64(w.Limit), 10)
	b = strconv.AppendInt(append(b, ";w="...), decide.Seconds(w.LengthNs(a.Now())), 10)
	if w.Max() != w.Limit { // a token bucket, as in the draft's example
		b = strconv.AppendUint(append(b, ";burst="...), uint64(w.Max()), 10)
	}
	return b
}

// appendXRateLimit writes the X-RateLimit fields of draft 03: the tightest
// window, and behind its limit the quota policies of all windows, each with the w
// that the draft requires.
func (f *Fields) appendXRateLimit(dst []Field, subjects []*decide.Subject, now int64) []Field {
	var (
		known       bool
		quota, left uint32
		reset       int64
	)
	quotas := f.text[0][:0]
	for _, a := range subjects {
		if !a.Known || a.Shadow {
			continue
		}
		for j := range a.Rule.Policy.Limits {
			w, u := a.Window(j)
			if w.Unlimited {
				continue
			}
			if remaining := w.Remaining(u, a.Now()); !known || remaining < left {
				known, quota, left, reset = true, w.Max(), remaining, resetSeconds(a, w, u, now)
			}
			quotas = appendQuota(quotas, a, w)
		}
	}
	f.text[0] = quotas
	if !known {
		return dst
	}
	return append(dst,
		Field{"x-ratelimit-limit", strconv.FormatUint(uint64(quota), 10) + string(quotas)},
		Field{"x-ratelimit-remaining", strconv.FormatUint(uint64(left), 10)},
		Field{"x-ratelimit-reset", strconv.FormatInt(reset, 10)})
}

// resetSeconds is the time from now, rounded up, until the window starts anew.
func resetSeconds(a *decide.Subject, w *limit.Window, u *limit.Usage, now int64) int64 {
	return decide.Seconds(w.Reset(u, a.Now()) - now)
}

func separate(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	return append(b, ", "...)
}

// appendPolicyName names a rule's limit in a structured-field string: the rule's
// name, after a colon the name of the override that holds and, where the rule has
// several limits, a slash and the limit's name or index. Characters that such a string
// cannot hold become "?".
func appendPolicyName(b []byte, a *decide.Subject, i int) []byte {
	r := a.Rule.Policy
	b = limit.AppendName(append(b, '"'), r.Name)
	if name := a.OverrideName(); name != "" {
		b = limit.AppendName(append(b, ':'), name)
	}
	if len(r.Limits) > 1 {
		b = append(b, '/')
		if name := r.Limits[i].Name; name != "" {
			b = limit.AppendName(b, name)
		} else {
			b = strconv.AppendInt(b, int64(i), 10)
		}
	}
	return append(b, '"')
}
