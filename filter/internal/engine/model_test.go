package engine

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// model decides as the engine must where no bucket is ever full: one record a
// key in a plain map, every window on its own, in the simplest words.
type model map[modelKey]*modelRecord

type modelKey struct{ rule, key string }

type modelRecord struct {
	last    int64 // when it was last written
	rebased bool  // a wild clock had written it
	windows []modelWindow
}

type modelWindow struct {
	start, end int64 // half open; both 0 = none yet
	used       uint32
}

// record returns a copy of what the key has used, as it stands at the instant
// it is counted at.
func (m model) record(t *attempt, now int64) modelRecord {
	r, windows := modelRecord{last: now, windows: make([]modelWindow, len(t.rule.windows))}, t.rule.windows
	if have := m[modelKey{t.rule.policy.Name, string(t.key.bytes)}]; have != nil {
		r = modelRecord{last: have.last, windows: slices.Clone(have.windows)}
	}
	horizon := int64(10_000_000_000)
	for _, w := range windows {
		horizon = max(horizon, w.PeriodNs)
	}
	if ahead := r.last - now; ahead > horizon {
		r.last, r.rebased = now, true
		for i, w := range windows {
			r.windows[i].start -= ahead
			r.windows[i].end -= ahead
			if w.Algorithm == limit.FixedWindow && r.windows[i].end != -ahead {
				r.windows[i].start, r.windows[i].end = grid(w, now)
			}
		}
	}
	r.last = max(r.last, now)
	for i := range r.windows {
		if r.windows[i].end <= r.last {
			r.windows[i] = modelWindow{}
		}
	}
	return r
}

// grid returns the aligned window that holds now.
func grid(w limit.Window, now int64) (start, end int64) {
	start = (now-w.OffsetNs)/w.PeriodNs*w.PeriodNs + w.OffsetNs
	return start, start + w.PeriodNs
}

// check returns when a hit passes, limit.Never, or a time not after the record's.
func (r *modelRecord) check(t *attempt) int64 {
	at := r.last
	for i, w := range t.rule.windows {
		switch used := uint64(r.windows[i].used) + uint64(t.cost); {
		case w.Limit == 0 || t.cost > w.Limit:
			return limit.Never
		case used > uint64(w.Limit):
			at = max(at, r.windows[i].end)
		}
	}
	return at
}

// add counts a hit.
func (m model) add(t *attempt, r modelRecord) {
	if t.cost == 0 || t.rule.table == nil {
		return
	}
	for i, w := range t.rule.windows {
		m := &r.windows[i]
		if m.end == 0 {
			m.start, m.end = r.last, r.last+w.PeriodNs
			if w.Algorithm == limit.FixedWindow {
				m.start, m.end = grid(w, r.last)
			}
		}
		m.used += t.cost
	}
	m.keep(t, r)
}

func (m model) keep(t *attempt, r modelRecord) {
	m[modelKey{t.rule.policy.Name, string(t.key.bytes)}] = &r
}

// decide returns whether a request that made these tries passes, the first rule
// that denies it, and how long it has to wait.
func (m model) decide(tries []attempt, now int64) (allowed bool, deniedBy string, retryNs int64) {
	records := make([]modelRecord, len(tries))
	for i := range tries {
		t := &tries[i]
		records[i] = m.record(t, now)
		passNs := records[i].check(t)
		if t.reason == ReasonMissingKey {
			passNs = limit.Never
		}
		if passNs != limit.Never && passNs <= records[i].last {
			continue
		}
		if records[i].rebased && t.reason != ReasonMissingKey {
			m.keep(t, records[i]) // or the clock would lock the key out
		}
		if deniedBy == "" {
			deniedBy = t.rule.policy.Name
		}
		if passNs == limit.Never || retryNs == limit.Never {
			retryNs = limit.Never
		} else {
			retryNs = max(retryNs, passNs-now)
		}
	}
	if deniedBy != "" {
		return false, deniedBy, retryNs
	}
	for i := range tries {
		m.add(&tries[i], records[i])
	}
	return true, "", 0
}
