package state

import (
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// observe records which windows the directory lists, if it has changed.
func (r *run) observe() {
	if !r.store.directoryChanged {
		return
	}
	r.store.directoryChanged = false
	d, ok := readDirectory(r.store.find(directoryKey).value)
	if !ok {
		r.found = "the directory cannot be read"
		return
	}
	listed := make(map[tenure]uint32)
	for _, e := range d.tables {
		for _, w := range e.windows {
			id := tenure{e.number, e.base, identity(w)}
			listed[id] = e.epoch
			if w.Algorithm == limit.Concurrency && w.PeriodNs != r.holdNs[id] {
				r.holdNs[id], r.lengths = w.PeriodNs, r.lengths+1
			}
			if since, before := r.present[id]; before {
				listed[id] = since
			}
		}
	}
	for id := range r.present {
		if _, still := listed[id]; !still {
			r.drops[id]++
		}
	}
	r.present = listed
}

// exact is the plainest limiter of one window and one key. units and burst are the
// largest limits that the key had in the run. minBurst is its smallest burst: a
// token bucket that is full under one configuration is full under all, also under
// one that admitted no hit of the key, because its workers have seen the bucket
// when they evicted other keys.
type exact struct {
	window                 limit.Window // on the key's own grid
	units, burst, minBurst int64
	pays                   int64 // units of debt that each fixed window takes off; 0 = all
	last                   int64
	open                   bool

	start, used, prev int64   // of the fixed window, or of the sliding counter's period
	level             int64   // of the token bucket, in tokens · ns
	log               []int64 // when each unit was counted
}

// count counts a hit and reports whether at most units are in its window now.
func (x *exact) count(now, cost, units int64) bool {
	if x.open && now < x.last {
		return false // time never goes back for a key
	}
	switch x.window.Algorithm {
	case limit.SlidingWindowLog:
		x.log = slices.DeleteFunc(x.log, func(at int64) bool { return at <= now-x.window.PeriodNs })
		for range cost {
			x.log = append(x.log, now)
		}
		x.used = int64(len(x.log))
	case limit.TokenBucket:
		full := x.burst * x.window.PeriodNs
		if x.level += (now - x.last) * x.units; !x.open || x.level >= x.minBurst*x.window.PeriodNs {
			x.level = full
		}
		x.level -= cost * x.window.PeriodNs
		x.open, x.last, x.used = true, now, x.burst-x.level/x.window.PeriodNs
		return x.level >= 0
	default:
		x.countFixed(now, cost)
	}
	x.open, x.last = true, now
	weighted := x.prev * (x.start + x.window.PeriodNs - now) / x.window.PeriodNs
	return weighted+x.used <= units
}

// countFixed counts in a fixed window, or in a period of a sliding counter.
func (x *exact) countFixed(now, cost int64) {
	period, start := x.window.PeriodNs, now
	perKey := x.window.Algorithm == limit.FixedWindowPerKey
	if !perKey {
		start = now - ((now-x.window.OffsetNs)%period+period)%period
	}
	switch {
	case x.open && perKey && now < x.start+period:
		if x.window.Elastic {
			x.start = now
		}
	case x.window.Algorithm == limit.SlidingWindowCounter:
		if start == x.start {
			break
		}
		x.prev = 0
		if x.open && start == x.start+period {
			x.prev = x.used
		}
		x.start, x.used = start, 0
	case !x.open:
		x.start = start
	case start != x.start:
		ended := (now - x.start) / period
		if x.used -= ended * x.pays; x.pays == 0 || x.used < 0 {
			x.used = 0
		}
		if perKey && x.used > 0 && !x.window.Elastic {
			start = x.start + ended*period
		}
		x.start = start
	}
	x.used += cost
}

type exactKey struct {
	key    int
	window tenure
	nth    int
	resets int
}

// counts reports whether the hit counts in the window in the end: it was not
// refunded, or it opened a per-key window that could not refund it. A token bucket
// that the hit's worker does not know the size of counts nothing.
func (h *admission) counts(w *admissionWindow) bool {
	switch w.tenure.window.Algorithm {
	case limit.TokenBucket:
		return w.checks && !h.back
	case limit.FixedWindowPerKey:
		return !h.back || w.stays
	default:
		return !h.back
	}
}

// setLimits sets x's limits from those that the hit's key has in all
// configurations of its counter.
func (r *run) setLimits(x *exact, h *admission) {
	for i := range r.variant {
		v := &r.variant[i]
		if v.Counter != r.variant[h.variant].Counter {
			continue
		}
		for j, w := range v.limitsOf(h.key) {
			if identity(v.Windows[j]) != x.window {
				continue
			}
			if x.minBurst = min(x.minBurst, int64(w.Burst)); x.burst == 0 {
				x.minBurst = int64(w.Burst)
			}
			x.units, x.burst = max(x.units, int64(w.Limit)), max(x.burst, int64(w.Burst))
		}
	}
}

// judge counts the admitted hits that were not refunded, in the order of their
// writes, in an exact limiter for each key and window. It returns the first
// violation.
func (r *run) judge() string {
	limiters := make(map[exactKey]*exact)
	for i := range r.hits {
		h := &r.hits[i]
		for _, w := range h.windows {
			id := exactKey{h.key, w.tenure, w.nth, w.resets}
			x := limiters[id]
			if x == nil {
				x = &exact{window: w.tenure.window}
				r.setLimits(x, h)
				x.window = x.window.Shifted(x.window.KeyShift(shiftHash([]byte{byte(h.key)})))
				limiters[id] = x
			}
		}
	}
	for i := range r.hits {
		h := &r.hits[i]
		for _, w := range h.windows {
			if !h.counts(&w) {
				continue
			}
			x := limiters[exactKey{h.key, w.tenure, w.nth, w.resets}]
			if !x.count(h.now, int64(h.cost), int64(w.units)) && w.checks {
				return fmt.Sprintf("hit %d: key %d has %d units at tick %d, the limit is %d, burst %d: %+v",
					i, h.key, x.used, h.now/tick, w.units, w.burst, w.tenure.window)
			}
		}
	}
	return ""
}

// shelf is a store for a run. It has the rules of memory and costs less.
type shelf struct {
	items            []shelfItem
	cas              uint32
	directoryChanged bool
}

type shelfItem struct {
	key   string
	value []byte
	cas   uint32
}

func newShelf() *shelf { return &shelf{} }

func (s *shelf) find(key []byte) *shelfItem {
	for i := range s.items {
		if s.items[i].key == string(key) {
			return &s.items[i]
		}
	}
	return nil
}

// shelfView is a worker's access to the shelf. Values it hands out last for
// the next 63 reads, far longer than a request.
type shelfView struct {
	shelf *shelf
	now   int64
	mono  int64
	ring  [64][]byte
	next  int
}

func (v *shelfView) Get(key []byte) ([]byte, uint32, Status) {
	item := v.shelf.find(key)
	if item == nil {
		return nil, 0, NotFound
	}
	v.next = (v.next + 1) % len(v.ring)
	v.ring[v.next] = append(v.ring[v.next][:0], item.value...)
	return v.ring[v.next], item.cas, OK
}

func (v *shelfView) Now() int64 { return v.now }

func (v *shelfView) Monotonic() int64 { return v.mono }

func (v *shelfView) Set(key, value []byte, cas uint32) Status {
	item := v.shelf.find(key)
	if item == nil {
		v.shelf.items = append(v.shelf.items, shelfItem{key: string(key)})
		item = &v.shelf.items[len(v.shelf.items)-1]
	} else if cas != 0 && cas != item.cas {
		return Mismatch
	}
	v.shelf.cas++
	item.value, item.cas = append(item.value[:0], value...), v.shelf.cas
	if string(key) == string(directoryKey) {
		v.shelf.directoryChanged = true
	}
	return OK
}
