package engine

import (
	"math/big"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// model decides as the engine must where no page is ever full: one record a
// key in a plain map, every window on its own, in the simplest words.
type model map[modelKey]*modelRecord

type modelKey struct{ rule, key string }

type modelRecord struct {
	last    int64 // when it was last written
	rebased bool  // a wild clock had written it
	windows []modelWindow
}

type modelWindow struct {
	start, end   int64 // half open; both 0 = none yet
	used, before int64 // before: of the sliding counter's bucket before
	log          []int64
	missing      *big.Int // of a full token bucket, a token being as much as its period has nanoseconds
}

// record returns a copy of what the key has used, as it stands at the instant
// it is counted at.
func (m model) record(t *decide.Subject, now int64) modelRecord {
	r, windows := modelRecord{last: now, windows: make([]modelWindow, len(t.Rule.Subjects.Windows))}, t.Limits.Windows
	if have := m[modelKey{t.Rule.Policy.Name, string(t.Key.Bytes)}]; have != nil {
		r = modelRecord{last: have.last, windows: slices.Clone(have.windows)}
		for i := range r.windows {
			r.windows[i].log = slices.Clone(r.windows[i].log)
		}
	}
	if ahead := r.last - now; ahead > 10_000_000_000 {
		r.last, r.rebased = now, true
		for i, w := range windows {
			r.windows[i].move(w, ahead, now)
		}
	}
	before := r.last
	r.last = max(r.last, now)
	for i, w := range windows {
		r.windows[i].roll(w, before, r.last)
	}
	return r
}

// move brings what was written so far ahead of now to now. What a sliding counter still
// counts of the bucket before, rounded up, counts in the present one.
func (m *modelWindow) move(w limit.Window, ahead, now int64) {
	for i := range m.log {
		m.log[i] -= ahead
	}
	switch {
	case m.end == 0:
	case w.Algorithm == limit.SlidingWindowCounter:
		left := m.before - m.before*(now+ahead-m.start)/w.PeriodNs
		*m = modelWindow{used: m.used + left}
		m.start, m.end = grid(w, now)
	case w.Algorithm == limit.FixedWindow: // also the key's own grid, of a jittered one
		m.start, m.end = grid(w, now)
	default:
		m.start, m.end = m.start-ahead, m.end-ahead
	}
}

// roll lets time pass from before to now.
func (m *modelWindow) roll(w limit.Window, before, now int64) {
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		m.log = slices.DeleteFunc(m.log, func(at int64) bool { return at+w.PeriodNs <= now })
	case limit.TokenBucket:
		if m.missing != nil {
			gained := new(big.Int).Mul(big.NewInt(now-before), big.NewInt(int64(w.Limit)))
			m.missing = gained.Sub(m.missing, gained)
			if m.missing.Sign() <= 0 {
				m.missing = nil
			}
		}
	case limit.SlidingWindowCounter:
		switch {
		case m.end == 0 || now < m.end:
		case now < m.end+w.PeriodNs:
			*m = modelWindow{start: m.end, end: m.end + w.PeriodNs, before: m.used}
		default:
			*m = modelWindow{}
		}
	default:
		if m.end <= now {
			*m = modelWindow{}
		}
	}
}

// grid returns the aligned window that holds now.
func grid(w limit.Window, now int64) (start, end int64) {
	start = (now-w.OffsetNs)/w.PeriodNs*w.PeriodNs + w.OffsetNs
	return start, start + w.PeriodNs
}

// check returns when a hit passes, limit.Never, or a time not after the record's.
func (r *modelRecord) check(t *decide.Subject) int64 {
	at := r.last
	if t.Unlimited {
		return at
	}
	for i, w := range t.Limits.Windows {
		most := w.Limit
		if w.Algorithm == limit.TokenBucket {
			most = w.Burst
		}
		switch {
		case w.Unlimited:
		case w.Limit == 0 || t.Cost > most:
			return limit.Never
		default:
			at = max(at, r.windows[i].check(w, r.last, int64(t.Cost)))
		}
	}
	return at
}

func (m *modelWindow) check(w limit.Window, now, cost int64) int64 {
	switch most := int64(w.Limit); w.Algorithm {
	case limit.SlidingWindowLog:
		if over := int64(len(m.log)) + cost - most; over > 0 {
			return m.log[over-1] + w.PeriodNs
		}
	case limit.TokenBucket:
		if m.missing == nil {
			break
		}
		// missing + cost·P − burst·P is to be gained, Limit of it a nanosecond
		lacks := new(big.Int).Mul(big.NewInt(cost-int64(w.Burst)), big.NewInt(w.PeriodNs))
		lacks.Add(lacks, m.missing)
		wait, rest := new(big.Int).DivMod(lacks, big.NewInt(most), new(big.Int))
		if rest.Sign() > 0 {
			wait.Add(wait, big.NewInt(1))
		}
		return now + wait.Int64()
	case limit.SlidingWindowCounter:
		low, high := now, now+2*w.PeriodNs // it passes at high, where nothing counts any more
		for low < high {
			if at := low + (high-low)/2; m.counter(w, at)+cost <= most {
				high = at
			} else {
				low = at + 1
			}
		}
		return low
	default:
		if m.used+cost > most {
			return m.end
		}
	}
	return now
}

// counter is what a sliding counter says at an instant.
func (m modelWindow) counter(w limit.Window, at int64) int64 {
	m.roll(w, 0, at)
	if m.end == 0 {
		return 0
	}
	return m.before*(m.end-at)/w.PeriodNs + m.used
}

// add counts a hit.
func (m model) add(t *decide.Subject, r modelRecord) {
	if t.Cost == 0 || t.Unlimited {
		return
	}
	for i, w := range t.Limits.Windows {
		r.windows[i].add(w, r.last, int64(t.Cost))
		log := &r.windows[i].log
		*log = (*log)[max(0, len(*log)-int(t.Rule.Subjects.Windows[i].Units)):]
	}
	m.keep(t, r)
}

func (m *modelWindow) add(w limit.Window, now, cost int64) {
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		for range min(cost, limit.MaxLog) {
			m.log = append(m.log, now)
		}
		return
	case limit.TokenBucket:
		charge := new(big.Int).Mul(big.NewInt(cost), big.NewInt(w.PeriodNs))
		if m.missing != nil {
			charge.Add(charge, m.missing)
		}
		m.missing = charge
		return
	case limit.FixedWindowPerKey:
		if m.end == 0 || w.Elastic {
			m.start, m.end = now, now+w.PeriodNs
		}
	default:
		m.start, m.end = grid(w, now)
	}
	m.used += cost
}

func (m model) keep(t *decide.Subject, r modelRecord) {
	m[modelKey{t.Rule.Policy.Name, string(t.Key.Bytes)}] = &r
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
		m.keep(t, r) // or the clock would lock the key out
	}
	return passNs
}

// decide returns whether a request that made these attempts passes, the first rule
// that denies it, and how long it has to wait.
func (m model) decide(attempts []*decide.Subject, now int64) (allowed bool, deniedBy string, retryNs int64) {
	records := make([]modelRecord, len(attempts))
	each := func(shadow bool, f func(t *decide.Subject, r modelRecord, passNs int64)) {
		for i := range attempts {
			if t := attempts[i]; t.Shadow == shadow {
				records[i] = m.record(t, now)
				f(t, records[i], records[i].check(t))
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
		each(false, func(t *decide.Subject, r modelRecord, passNs int64) {
			if r.rebased && t.Reason() != "missing_key" {
				m.keep(t, r)
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
