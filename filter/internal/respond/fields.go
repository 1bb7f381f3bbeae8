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

	text [3][]byte // header values under construction
}

// Append appends the response headers of a verdict: on a denial Retry-After and
// those of its response, and the fields of the style. Those describe the denying
// rule of a denial, or every rule that matched an allowed request.
func (f *Fields) Append(dst []Field, v *decide.Verdict) []Field {
	if seconds, ok := v.RetryAfter(); ok {
		dst = append(dst, Field{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	if v.Allowed {
		return f.appendWindows(dst, v.Subjects, v.Now)
	}
	return f.appendWindows(f.appendResponse(dst, v), v.Subjects[v.Denied:v.Denied+1], v.Now)
}

// appendWindows writes the fields of the style for the windows of rules. Clients learn
// nothing of shadow rules.
//
// RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-10 have one item
// for each window, with quota q and window w, remaining r and seconds to reset t. There is no
// w for a window that is no whole number of seconds, nor for a token bucket whose burst
// differs from what it gains in a period.
//
// The X-RateLimit fields of draft 03 have the tightest window, and behind its limit the quota
// policies of all windows, each with the w that the draft requires.
func (f *Fields) appendWindows(dst []Field, subjects []*decide.Subject, now int64) []Field {
	ietf := f.Style == policy.HeadersIETF || f.Style == policy.HeadersBoth
	xRateLimit := f.Style == policy.HeadersXRateLimit || f.Style == policy.HeadersBoth
	if !ietf && !xRateLimit {
		return dst
	}
	policies, limits, quotas := f.text[0][:0], f.text[1][:0], f.text[2][:0]
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
			left, reset := w.Remaining(u, a.Now()), decide.Seconds(w.Reset(u, a.Now())-now)
			if tightest == nil || left < least {
				tightest, least, endsIn = w, left, reset
			}
			if ietf {
				policies = appendPolicy(policies, a, i, w)
				limits = appendPolicyName(separate(limits), a, i)
				limits = strconv.AppendUint(append(limits, ";r="...), uint64(left), 10)
				limits = strconv.AppendInt(append(limits, ";t="...), reset, 10)
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
