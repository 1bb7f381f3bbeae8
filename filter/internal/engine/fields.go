package engine

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Field is one response header.
type Field struct{ Name, Value string }

// AppendFields appends the response headers of the verdict: on a denial
// Retry-After and those of its response, and what the policy's headers setting
// asks for. A denial speaks of the rule it is attributed to, an allowed request
// of every rule that matched.
func (e *Engine) AppendFields(dst []Field, v *Verdict) []Field {
	if seconds, ok := v.RetryAfter(); ok {
		dst = append(dst, Field{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	if !v.Allowed {
		dst = e.appendResponse(dst, v)
	}
	style := e.policy.Headers
	if style == policy.HeadersNone || !v.Matched() {
		return dst
	}
	tries := v.tries
	if !v.Allowed {
		tries = tries[v.denied : v.denied+1]
	}
	if style == policy.HeadersIETF || style == policy.HeadersBoth {
		dst = e.appendIETF(dst, tries, v.Now)
	}
	if style == policy.HeadersXRateLimit || style == policy.HeadersBoth {
		dst = e.appendXRateLimit(dst, tries, v.Now)
	}
	return dst
}

// appendIETF writes RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10: one item for each window, with quota
// q and window w, remaining r and seconds to reset t. A window that is no whole
// number of seconds has no w, nor has a token bucket whose burst is not what it
// gains in a period. Shadow rules tell clients nothing.
func (e *Engine) appendIETF(dst []Field, tries []*attempt, now int64) []Field {
	policies, limits := e.text[0][:0], e.text[1][:0]
	for _, t := range tries {
		if !t.known || t.shadow {
			continue
		}
		for j := range t.rule.policy.Limits {
			w, u := t.window(j)
			if w.Unlimited {
				continue
			}
			policies = appendPolicyName(separate(policies), t.rule.policy, j)
			policies = strconv.AppendUint(append(policies, ";q="...), uint64(w.Max()), 10)
			if w.PeriodNs%second == 0 && w.Max() == w.Limit {
				policies = strconv.AppendInt(append(policies, ";w="...), w.PeriodNs/second, 10)
			}
			limits = appendPolicyName(separate(limits), t.rule.policy, j)
			limits = strconv.AppendUint(append(limits, ";r="...), uint64(w.Remaining(u, t.entry.Now)), 10)
			limits = strconv.AppendInt(append(limits, ";t="...), t.resetSeconds(w, u, now), 10)
		}
	}
	e.text = [2][]byte{policies, limits}
	if len(policies) == 0 {
		return dst
	}
	return append(dst, Field{"ratelimit-policy", string(policies)}, Field{"ratelimit", string(limits)})
}

// appendXRateLimit writes the X-RateLimit fields of draft 03: the window with
// least remaining, and behind its limit the quota policies of all windows, each
// with the w that the draft requires.
func (e *Engine) appendXRateLimit(dst []Field, tries []*attempt, now int64) []Field {
	var (
		known       bool
		quota, left uint32
		reset       int64
	)
	quotas := e.text[0][:0]
	for _, t := range tries {
		if !t.known || t.shadow {
			continue
		}
		for j := range t.rule.policy.Limits {
			w, u := t.window(j)
			if w.Unlimited {
				continue
			}
			if remaining := w.Remaining(u, t.entry.Now); !known || remaining < left {
				known, quota, left, reset = true, w.Max(), remaining, t.resetSeconds(w, u, now)
			}
			quotas = strconv.AppendUint(append(quotas, ", "...), uint64(w.Limit), 10)
			quotas = strconv.AppendInt(append(quotas, ";w="...), ceilDiv(w.PeriodNs, second), 10)
			if w.Max() != w.Limit { // a bucket, in the words of the draft's own example
				quotas = strconv.AppendUint(append(quotas, ";burst="...), uint64(w.Max()), 10)
			}
		}
	}
	e.text[0] = quotas
	if !known {
		return dst
	}
	return append(dst,
		Field{"x-ratelimit-limit", strconv.FormatUint(uint64(quota), 10) + string(quotas)},
		Field{"x-ratelimit-remaining", strconv.FormatUint(uint64(left), 10)},
		Field{"x-ratelimit-reset", strconv.FormatInt(reset, 10)})
}

// resetSeconds is how long it is from now, rounded up, until the window starts anew.
func (t *attempt) resetSeconds(w *limit.Window, u *limit.Usage, now int64) int64 {
	return ceilDiv(w.Reset(u, t.entry.Now)-now, second)
}

func separate(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	return append(b, ", "...)
}

// appendPolicyName writes a rule's limit as a structured-field string: the
// rule's name, and behind a slash the limit's own or its index where the rule
// has several. Characters that such a string cannot hold become "?".
func appendPolicyName(b []byte, r *policy.Rule, i int) []byte {
	b = limit.AppendName(append(b, '"'), r.Name)
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
