package interleave

import "fmt"

// event is an access that was made. clock is its vector clock: clock[w] is 1 + the
// index of the last event of worker w that happens before it, 0 = none.
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

// conflicts reports whether the order of e and a matters: one of them writes the key of both.
func (e *event) conflicts(a *access) bool { return e.key == a.key && (e.write || a.write) }

// happensBefore reports whether event i happens before e.
func (s *Scheduler) happensBefore(i int, e *event) bool { return e.clock[s.events[i].worker] > i }

// setClock computes what happens before the last event, whose index is at.
func (s *Scheduler) setClock(at int) {
	e := &s.events[at]
	for i := at - 1; i >= 0; i-- {
		if before := &s.events[i]; before.worker == e.worker || before.conflicts(&e.access) {
			if !s.happensBefore(i, e) {
				e.join(i, before)
			}
		}
	}
	e.clock[e.worker] = at + 1
}

// join adds event i, and all that happens before it, to what happens before e.
func (e *event) join(i int, before *event) {
	for w, n := range before.clock {
		e.clock[w] = max(e.clock[w], n)
	}
	e.clock[before.worker] = max(e.clock[before.worker], i+1)
}

// races finds the events that race with the last one, whose index is at, and makes
// the search try the other order.
func (s *Scheduler) races(path []node, at int) {
	e := &s.events[at]
	// seen joins the events that were compared with e. An event that happens before one of
	// these cannot move next to e, so it does not race with e.
	seen := event{worker: e.worker}
	for i := at - 1; i >= 0; i-- {
		before := &s.events[i]
		switch {
		case s.happensBefore(i, &seen):
		case before.worker == e.worker:
			seen.join(i, before)
		case before.conflicts(&e.access):
			seen.join(i, before)
			s.reverse(&path[i], i, at)
		}
	}
}

// reverse makes the search try an execution in which event at comes before event i. The node n
// is the one before event i, where the two executions part. The events up to at that do not
// happen after i can come before it. The other execution starts with the worker of one that can
// come first among them: the initials of source-DPOR.
func (s *Scheduler) reverse(n *node, i, at int) {
	var before []int // events behind i, up to at, that do not happen after i
	first := set(0)
	seen := set(0)
	for j := i + 1; j <= at; j++ {
		e := &s.events[j]
		if j < at && s.happensBefore(i, e) {
			continue
		}
		if !seen.has(e.worker) {
			seen |= only(e.worker)
			initial := true
			for _, k := range before {
				if s.happensBefore(k, e) {
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
