package engine

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// decide checks all enforced rules, then counts the hit in all of them in
// policy order; a denial after the first count refunds what was counted.
// Shadow rules see what the enforced ones allow, and count last.
func (e *Engine) decide(attempts []*Attempt, now int64) {
	v := &e.verdict
	v.Now, v.Attempts = now, attempts
	denied := e.check(attempts, now)
	if !denied && !v.Pending {
		denied = e.commit(attempts, now)
	}
	if v.Pending {
		return
	}
	for _, a := range attempts {
		if a.Shadow {
			if denied {
				if a.Reason == "" || a.Reason == ReasonLimit { // or as the quota service would have it
					a.Allowed, a.Known, a.Pending, a.Reason = true, false, false, ReasonNotAsked
				}
				continue
			}
			if a.check(now); !a.Pending {
				a.commit(now)
			}
			if a.Pending {
				a.overtaken()
			}
		}
		if counted := a.countDenied(now); !counted && (denied || !a.Allowed) {
			a.persist()
		}
	}
	if denied {
		v.settle()
	}
	v.count()
}

// check checks the enforced rules, and reports whether one denies. It finds out too
// whether shadow rules have to ask the quota service: once the rules count, no
// request waits.
func (e *Engine) check(attempts []*Attempt, now int64) (denied bool) {
	v := &e.verdict
	for i := range attempts {
		switch a := attempts[i]; {
		case !a.Shadow:
			a.ahead = ahead(attempts[:i], a)
			a.check(now)
			denied = denied || !a.Allowed
			v.Pending = v.Pending || a.Pending
		case a.rule.leases != nil:
			a.check(now)
			v.Pending = v.Pending || a.Pending
		}
	}
	if v.Pending = v.Pending && !denied; v.Pending {
		denied = v.boundWants(now)
	}
	return denied
}

// commit counts the hit in the enforced rules, or in none of them: if one denies or
// has to ask after all. It reports whether one denied.
func (e *Engine) commit(attempts []*Attempt, now int64) (denied bool) {
	v := &e.verdict
	for i := 0; i < len(attempts) && !denied && !v.Pending; i++ {
		if attempts[i].Shadow {
			continue
		}
		attempts[i].commit(now)
		denied, v.Pending = !attempts[i].Allowed, attempts[i].Pending
		if denied || v.Pending {
			for i--; i >= 0; i-- {
				attempts[i].refund(now)
			}
		}
	}
	return denied
}

// boundWants lets on_contention decide for rules whose units one ask has no room
// for: an ask is granted as a whole, so they cannot be asked for apart. It reports
// whether that denies the request.
func (v *Verdict) boundWants(now int64) (denied bool) {
	wants, pending := 0, false
	for _, shadow := range [2]bool{false, true} {
		for _, a := range v.Attempts {
			if a.Shadow != shadow || !a.asks() {
				continue
			}
			if wants++; wants > quota.MaxGroup && a.Pending {
				a.Pending = false
				a.rule.metrics.Contention++
				a.fail(ReasonContention, a.rule.policy.OnContention, now)
				denied = denied || !a.Allowed && !a.Shadow
			}
			pending = pending || a.Pending
		}
	}
	v.Pending = pending && !denied
	return denied
}

// overtaken lets a shadow rule pass whose units another request has just taken: by
// now the request is counted.
func (a *Attempt) overtaken() {
	a.Pending, a.Reason = false, ReasonContention
	a.rule.metrics.Contention++
}

// ahead is how many units the enforced attempts before a will count in a's
// record: rules that share a counter count a request once each.
func ahead(before []*Attempt, a *Attempt) (units uint32) {
	for _, b := range before {
		if b.rule.counted == a.rule.counted && !b.Shadow && !b.Unlimited && !a.Unlimited && a.Cost > 0 &&
			slices.Equal(b.Key.Bytes, a.Key.Bytes) {
			units += min(b.Cost, math.MaxUint32-units)
		}
	}
	return units
}

// peek decides without counting.
func (e *Engine) peek(attempts []*Attempt, now int64) *Verdict {
	v := &e.verdict
	v.Now, v.Attempts = now, attempts
	for _, a := range attempts {
		a.check(now)
	}
	v.settle()
	return v
}

// settle makes the verdict out of the attempts.
func (v *Verdict) settle() {
	for i := range v.Attempts {
		a := v.Attempts[i]
		if a.Allowed || a.Shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.Denied = false, i
		}
		switch {
		case v.RetryNs == limit.Never:
		case a.passNs == limit.Never:
			v.RetryNs = limit.Never
		default:
			v.RetryNs = max(v.RetryNs, a.passNs-v.Now)
		}
	}
}

// count adds the verdict to the rules' metrics.
func (v *Verdict) count() {
	for _, a := range v.Attempts {
		m := &a.rule.metrics
		if a.Reason == ReasonFull {
			m.Full++
		}
		n := a.named()
		switch {
		case v.Allowed && (a.Allowed || !a.Shadow):
			m.Allowed++
			n.Allowed++
		case a.Shadow && v.Allowed:
			m.ShadowDenied++
			n.ShadowDenied++
			a.noteDenied(v.Now)
		case !a.Allowed && !a.Shadow:
			m.Denied++
			n.Denied++
			a.noteDenied(v.Now)
			if a.Reason == ReasonLimit && a.entry.FromFloor {
				m.FloorDenied++
			}
		}
		if a.counted {
			a.rule.spikes.count(a, m)
		}
	}
}

// named is what counts the attempt under its override's name; what nobody reads where
// it has none.
func (a *Attempt) named() *namedMetrics {
	if a.Override >= 0 {
		if i := a.rule.namedBy[a.Override]; i >= 0 {
			return &a.rule.named[i]
		}
	}
	return &a.unnamed
}
