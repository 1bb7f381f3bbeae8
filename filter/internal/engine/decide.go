package engine

import "github.com/sluice-ratelimit/sluice/shared/limit"

// decide checks all rules, then counts the hit in all of them in policy order.
// A denial after the first count takes back what was counted.
func (e *Engine) decide(tries []attempt, now int64) {
	v := &e.verdict
	v.Now, v.tries = now, tries
	denied := false
	for i := range tries {
		tries[i].check(now)
		tries[i].persist()
		denied = denied || !tries[i].allowed
	}
	for i := 0; i < len(tries) && !denied; i++ {
		tries[i].commit(now)
		if denied = !tries[i].allowed; denied {
			for i--; i >= 0; i-- {
				tries[i].takeBack(now)
			}
		}
	}
	v.settle()
	v.count()
}

// settle makes the verdict out of what the rules have said.
func (v *Verdict) settle() {
	for i := range v.tries {
		t := &v.tries[i]
		if t.allowed {
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
	for i := range v.tries {
		t := &v.tries[i]
		m := &t.rule.metrics
		if t.reason == ReasonFull {
			m.Full++
		}
		switch {
		case v.Allowed:
			m.Allowed++
		case !t.allowed:
			m.Denied++
			if t.reason == ReasonLimit && t.entry.FromFloor {
				m.FloorDenied++
			}
		}
	}
}
