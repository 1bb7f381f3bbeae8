package interleave

import "fmt"

// event is an access that was made, and what happens before it: clock[w] is how
// many of the events up to here have w as their last such event of worker w,
// that is, its index plus one; 0 = none.
type event struct {
	worker int
	access
	clock [MaxWorkers]int
}

func (e *event) String() string {
	kind := "get"
	if e.cas != 0 || e.write {
		kind = "set"
		if !e.write {
			kind = "set, overtaken,"
		}
	}
	return fmt.Sprintf("  worker %d: %s %s", e.worker, kind, e.name)
}

// conflicts reports whether the two do not commute.
func (e *event) conflicts(a *access) bool { return e.key == a.key && (e.write || a.write) }

// after reports whether event i happens before e.
func (s *Scheduler) after(i int, e *event) bool { return e.clock[s.events[i].worker] > i }

// order works out what happens before the last event, which is number at.
func (s *Scheduler) order(at int) {
	e := &s.events[at]
	for i := at - 1; i >= 0; i-- {
		if before := &s.events[i]; before.worker == e.worker || before.conflicts(&e.access) {
			if !s.after(i, e) {
				e.join(i, before)
			}
		}
	}
	e.clock[e.worker] = at + 1
}

func (e *event) join(i int, before *event) {
	for w, n := range before.clock {
		e.clock[w] = max(e.clock[w], n)
	}
	e.clock[before.worker] = max(e.clock[before.worker], i+1)
}

// races finds the events that the last one, number at, could also have come
// before, and has the search try that.
func (s *Scheduler) races(path []node, at int) {
	e := &s.events[at]
	// What has been joined so far: an event that happens before something joined
	// already is never next to e in any execution equal to this one.
	seen := event{worker: e.worker}
	for i := at - 1; i >= 0; i-- {
		before := &s.events[i]
		switch {
		case s.after(i, &seen):
		case before.worker == e.worker:
			seen.join(i, before)
		case before.conflicts(&e.access):
			seen.join(i, before)
			s.reverse(&path[i], i, at)
		}
	}
}

// reverse has the search go, from before event i, some way on which event at
// comes before i: starting with one of those that can come first among the
// events that do not happen after i.
func (s *Scheduler) reverse(n *node, i, at int) {
	var before []int // the events between that do not happen after i
	first := set(0)
	seen := set(0)
	for j := i + 1; j <= at; j++ {
		e := &s.events[j]
		if j < at && s.after(i, e) {
			continue
		}
		if !seen.has(e.worker) {
			seen |= only(e.worker)
			initial := true
			for _, k := range before {
				if s.after(k, e) {
					initial = false
					break
				}
			}
			if initial {
				first |= only(e.worker)
			}
		}
		before = append(before, j)
	}
	if first&n.backtrack == 0 {
		n.backtrack |= only(first.first())
	}
}
