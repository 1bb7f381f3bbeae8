package describe

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// prepared is what the fields of one rule's verdicts have in common. Only what is
// left and when it resets is written for each.
type prepared struct {
	rule     *policy.Rule
	policies string   // the whole of RateLimit-Policy
	items    []string // of RateLimit: what precedes a limit's remaining units
	quotas   []string // the whole of X-RateLimit-Limit where that limit is the tightest
}

func prepare(a *engine.Attempt) *prepared {
	r := a.Rule()
	p := &prepared{rule: r}
	var policies, quotas []byte
	for i := range r.Limits {
		w, _ := a.Window(i)
		policies = appendPolicy(policies, a, i, w)
		quotas = appendQuota(quotas, w)
		name := appendPolicyName(nil, a, i)
		if i > 0 {
			name = append([]byte(", "), name...)
		}
		p.items = append(p.items, string(name)+";r=")
	}
	p.policies = string(policies)
	for i := range r.Limits {
		w, _ := a.Window(i)
		p.quotas = append(p.quotas, strconv.FormatUint(uint64(w.Max()), 10)+string(quotas))
	}
	return p
}

// preparedFor returns what is prepared for the attempt's rule.
func (f *Fields) preparedFor(a *engine.Attempt) *prepared {
	r := a.Rule()
	if f.last != nil && f.last.rule == r {
		return f.last
	}
	p := f.prepared[r]
	if p == nil {
		if p = prepare(a); f.prepared == nil {
			f.prepared = map[*policy.Rule]*prepared{}
		}
		f.prepared[r] = p
	}
	f.last = p
	return p
}

// isPrepared reports whether appendOne serves the attempt.
func isPrepared(a *engine.Attempt) bool {
	return a.Known && !a.Shadow && a.Override < 0 && len(a.Rule().Limits) > 0
}

// appendOne is Append's fields of the style for one attempt by its rule's own
// limits.
func (f *Fields) appendOne(dst []Field, a *engine.Attempt, now int64, ietf, xRateLimit bool) []Field {
	p := f.preparedFor(a)
	b := f.text[0][:0]
	var best, leftFrom, leftTo, resetFrom, resetTo int
	lowest := ^uint32(0)
	for i := range p.items {
		w, u := a.Window(i)
		left, reset := remaining(w, u, a.Now()), resetSeconds(a, w, u, now)
		b = append(b, p.items[i]...)
		from := len(b)
		b = appendNumber(b, uint64(left))
		to := len(b)
		b = append(b, ";t="...)
		until := len(b)
		b = appendNumber(b, uint64(reset))
		if i == 0 || left < lowest {
			best, lowest = i, left
			leftFrom, leftTo, resetFrom, resetTo = from, to, until, len(b)
		}
	}
	f.text[0] = b
	text := string(b)
	if ietf {
		dst = append(dst, Field{"ratelimit-policy", p.policies}, Field{"ratelimit", text})
	}
	if xRateLimit {
		dst = append(dst, Field{"x-ratelimit-limit", p.quotas[best]},
			Field{"x-ratelimit-remaining", text[leftFrom:leftTo]}, Field{"x-ratelimit-reset", text[resetFrom:resetTo]})
	}
	return dst
}

// remaining is Window.Remaining, at hand for the windows of most rules.
func remaining(w *limit.Window, u *limit.Usage, now int64) uint32 {
	if w.Algorithm != limit.FixedWindow && w.Algorithm != limit.FixedWindowPerKey {
		return w.Remaining(u, now)
	}
	return w.Limit - min(u.Used, w.Limit)
}

// appendNumber appends n in decimal. strconv makes two calls more for each number,
// which TestFunctionCallsOfARequest counts.
func appendNumber(b []byte, n uint64) []byte {
	var digits [20]byte
	i := len(digits) - 1
	for ; n > 9; i-- {
		digits[i] = '0' + byte(n%10)
		n /= 10
	}
	digits[i] = '0' + byte(n)
	return append(b, digits[i:]...)
}
