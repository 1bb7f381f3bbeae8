package state

import (
	"fmt"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// observe notes which windows the directory names, whenever that has changed.
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
	named := make(map[tenure]uint32)
	for _, e := range d.tables {
		for _, w := range e.windows {
			w.Limit = 0
			id := tenure{e.number, e.base, w}
			named[id] = e.epoch
			if since, before := r.present[id]; before {
				named[id] = since
			}
		}
	}
	for id := range r.present {
		if _, still := named[id]; !still {
			r.drops[id]++
		}
	}
	r.present = named
}

// exact is the plainest limiter of one window and one key.
type exact struct {
	window limit.Window
	start  int64
	used   uint64
	open   bool
}

// count counts a hit and reports whether no more than units are in its window.
func (x *exact) count(now int64, cost, units uint32) bool {
	start := now
	if x.window.Algorithm == limit.FixedWindow {
		start = now - ((now-x.window.OffsetNs)%x.window.PeriodNs+x.window.PeriodNs)%x.window.PeriodNs
	}
	switch {
	case x.window.Algorithm == limit.FixedWindow && x.open && start < x.start:
		return false // an instant of a window that was over
	case !x.open, x.window.Algorithm == limit.FixedWindow && start != x.start,
		x.window.Algorithm == limit.FixedWindowPerKey && now >= x.start+x.window.PeriodNs:
		x.open, x.start, x.used = true, start, 0
	}
	x.used += uint64(cost)
	return x.used <= uint64(units)
}

type exactKey struct {
	key    int
	window tenure
	nth    int
}

// verdict gives the admitted hits that were not taken back, in the order of
// their writes, to an exact limiter for each key and window. A hit that could
// not be taken back has opened its per-key window all the same.
func (r *run) verdict() string {
	limiters := make(map[exactKey]*exact)
	for i, h := range r.hits {
		for _, w := range h.windows {
			if h.back && !(h.stays && w.tenure.window.Algorithm == limit.FixedWindowPerKey) {
				continue
			}
			id := exactKey{h.key, w.tenure, w.nth}
			x := limiters[id]
			if x == nil {
				x = &exact{window: w.tenure.window}
				limiters[id] = x
			}
			if !x.count(h.now, h.cost, w.units) && w.checks {
				return fmt.Sprintf("hit %d: key %d has %d units at tick %d, the limit is %d: %+v",
					i, h.key, x.used, h.now/tick, w.units, w.tenure.window)
			}
		}
	}
	return ""
}

// shelf is a store for a run: the rules of memory, without its cost.
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

// fault breaks a write; it may change value and returns the cas to use.
type fault func(v *shelfView, key, value []byte, cas uint32) uint32

// shelfView is a worker's access to the shelf. Values it hands out last for
// the next 63 reads, far longer than a request.
type shelfView struct {
	shelf *shelf
	fault fault
	now   int64
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

func (v *shelfView) Set(key, value []byte, cas uint32) Status {
	if v.fault != nil {
		cas = v.fault(v, key, value, cas)
	}
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
