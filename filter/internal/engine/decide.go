package engine

import (
	"bytes"
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// decide checks all enforced rules, then counts the hit in all of them in
// policy order; a denial after the first count takes back what was counted.
// Shadow rules see what the enforced ones allow, and count last.
func (e *Engine) decide(tries []*attempt, now int64) {
	v := &e.verdict
	v.Now, v.tries = now, tries
	denied := false
	for i := range tries {
		if t := tries[i]; !t.shadow {
			t.ahead = ahead(tries[:i], t)
			t.check(now)
			denied = denied || !t.allowed
		}
	}
	for i := 0; i < len(tries) && !denied; i++ {
		if tries[i].shadow {
			continue
		}
		tries[i].commit(now)
		if denied = !tries[i].allowed; denied {
			for i--; i >= 0; i-- {
				tries[i].refund(now)
			}
		}
	}
	for _, t := range tries {
		if t.shadow {
			if denied {
				if t.reason == "" {
					t.reason = ReasonNotAsked
				}
				continue
			}
			t.check(now)
			t.commit(now)
		}
		if counted := t.countDenied(now); !counted && (denied || !t.allowed) {
			t.persist()
		}
	}
	v.settle()
	v.count()
}

// ahead is how many units the enforced ones of the tries before t will count in
// t's record: rules that share a counter count a request once each.
func ahead(before []*attempt, t *attempt) (units uint32) {
	for _, b := range before {
		if b.rule.table == t.rule.table && !b.shadow && !b.free && !t.free && t.cost > 0 && bytes.Equal(b.key.bytes, t.key.bytes) {
			units += min(b.cost, math.MaxUint32-units)
		}
	}
	return units
}

// settle makes the verdict out of what the rules have said.
func (v *Verdict) settle() {
	for i := range v.tries {
		t := v.tries[i]
		if t.allowed || t.shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.denied = false, i
		}
		switch {
		case v.RetryNs == limit.Never:
		case t.passNs == limit.Never:
			v.RetryNs = limit.Never
		default:
			v.RetryNs = max(v.RetryNs, t.passNs-v.Now)
		}
	}
}

// count adds the verdict to the rules' metrics.
func (v *Verdict) count() {
	for _, t := range v.tries {
		m := &t.rule.metrics
		if t.reason == ReasonFull {
			m.Full++
		}
		switch {
		case v.Allowed && (t.allowed || !t.shadow):
			m.Allowed++
		case t.shadow && v.Allowed:
			m.ShadowDenied++
		case !t.allowed && !t.shadow:
			m.Denied++
			if t.reason == ReasonLimit && t.entry.FromFloor {
				m.FloorDenied++
			}
		}
		if t.counted {
			t.rule.spikes.count(t, m)
		}
	}
}
