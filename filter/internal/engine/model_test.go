package engine

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// model decides as the engine must where no page is ever full: one record a key in a plain map,
// by the arithmetic of package limit, whose own tests compare that with references.
type model map[modelKey]*modelRecord

type modelKey struct{ rule, key string }

type modelRecord struct {
	last    int64 // when it was last written
	rebased bool  // a wild clock had written it
	usages  []limit.Usage
}

func keyOf(t *decide.Subject) modelKey { return modelKey{t.Rule.Policy.Name, string(t.Key.Bytes)} }

// windowOf is one of the key's, with room for as many log entries as the rule's.
func windowOf(t *decide.Subject, i int) *limit.Window {
	w := t.Limits.Windows[i]
	w.Units = t.Rule.Subjects.Windows[i].Units
	return &w
}

// record returns a copy of what the key has used, as it stands at the instant
// it is counted at.
func (m model) record(t *decide.Subject, now int64) modelRecord {
	r := modelRecord{last: now, usages: make([]limit.Usage, len(t.Limits.Windows))}
	if have := m[keyOf(t)]; have != nil {
		r.last, r.usages = have.last, slices.Clone(have.usages)
	}
	before, ahead := r.last, r.last
	if r.rebased = ahead-now > 10_000_000_000; r.rebased {
		before = now
	}
	r.last = max(before, now)
	for i := range r.usages {
		w, u := windowOf(t, i), &r.usages[i]
		if u.Log = slices.Clone(u.Log); r.rebased {
			w.SetBack(u, ahead, now)
		}
		w.Roll(u, before, r.last)
	}
	return r
}

// check returns when a hit passes, limit.Never, or a time not after the record's.
func (r *modelRecord) check(t *decide.Subject) int64 {
	at := r.last
	for i := range r.usages {
		if at == limit.Never || t.Unlimited {
			break
		}
		if passNs := windowOf(t, i).Check(&r.usages[i], r.last, t.Cost); passNs == limit.Never || passNs > at {
			at = passNs
		}
	}
	return at
}

// add counts a hit.
func (m model) add(t *decide.Subject, r modelRecord) {
	if t.Cost == 0 || t.Unlimited {
		return
	}
	for i := range r.usages {
		windowOf(t, i).Add(&r.usages[i], r.last, t.Cost)
	}
	m[keyOf(t)] = &r
}

// denies does what a rule does that denies, and reports when the hit passes.
func (m model) denies(t *decide.Subject, r modelRecord, passNs int64) int64 {
	if t.Reason() == "missing_key" {
		return limit.Never
	}
	if t.Rule.Policy.CountDenied && t.Cost > 0 {
		m.add(t, r)
		return r.check(t)
	}
	if r.rebased {
		m[keyOf(t)] = &r // or the clock would lock the key out
	}
	return passNs
}

// decide returns whether a request that made these attempts passes, the first rule
// that denies it, and how long it has to wait.
func (m model) decide(attempts []*decide.Subject, now int64) (allowed bool, deniedBy string, retryNs int64) {
	each := func(shadow bool, f func(t *decide.Subject, r modelRecord, passNs int64)) {
		for _, t := range attempts {
			if t.Shadow == shadow {
				r := m.record(t, now)
				f(t, r, r.check(t))
			}
		}
	}
	passes := func(t *decide.Subject, r modelRecord, passNs int64) bool {
		return t.Reason() != "missing_key" && passNs != limit.Never && passNs <= r.last
	}
	each(false, func(t *decide.Subject, r modelRecord, passNs int64) {
		if passes(t, r, passNs) {
			return
		}
		passNs = m.denies(t, r, passNs)
		if deniedBy == "" {
			deniedBy = t.Rule.Policy.Name
		}
		if passNs == limit.Never || retryNs == limit.Never {
			retryNs = limit.Never
		} else {
			retryNs = max(retryNs, passNs-now)
		}
	})
	if deniedBy != "" {
		each(false, func(t *decide.Subject, r modelRecord, _ int64) {
			if r.rebased && t.Reason() != "missing_key" {
				m[keyOf(t)] = &r
			}
		})
		return false, deniedBy, retryNs
	}
	for _, shadow := range []bool{false, true} {
		each(shadow, func(t *decide.Subject, r modelRecord, passNs int64) {
			if passes(t, r, passNs) {
				m.add(t, r)
			} else {
				m.denies(t, r, passNs)
			}
		})
	}
	return true, "", 0
}
