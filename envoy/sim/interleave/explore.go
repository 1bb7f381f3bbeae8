package interleave

import (
	"errors"
	"math/rand/v2"
)

// Bounds say how much of a space is explored.
type Bounds struct {
	Most   int    // executions of the search; 0 = all there are
	Random int    // executions at random where the search left some
	Seed   uint64 // of those; execution i takes its choices from (Seed, i)
}

// Result is what an exploration has seen.
type Result struct {
	Executions int  // of the search, no two of them equal
	Exhaustive bool // those are all there are
	Redundant  int  // begun and found to equal one before
	Random     int  // executions at random
	Accesses   int  // of all executions
	Longest    int  // accesses of the longest one
	Failure    *Failure
}

// Explore runs a space's executions until one is judged wrong.
//
// Two executions are equal if one becomes the other by swapping adjacent
// accesses that commute: of different keys, or two reads. Of equal ones a single
// one is completed. The search is source-DPOR with sleep sets, as in Abdulla,
// Aronis, Jonsson, Sagonas, "Optimal dynamic partial order reduction", 2014,
// algorithm 1.
func (s *Scheduler) Explore(space Space, b Bounds) (r Result) {
	var path []node
	for r.Failure == nil {
		if b.Most > 0 && r.Executions == b.Most {
			s.random(&space, b, &r)
			return r
		}
		path = s.extend(&space, path, &r)
		for len(path) > 0 && !path[len(path)-1].next() {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			r.Exhaustive = r.Failure == nil
			return r
		}
	}
	return r
}

// node is a state on the path of the search.
type node struct {
	chosen    int
	backtrack set // who has to go from here
	sleep     set // who need not, because it went from here, or from before here
	pending   [MaxWorkers]access
}

// next chooses who goes from here after all that follows the last choice has
// been seen.
func (n *node) next() bool {
	n.sleep |= only(n.chosen)
	left := n.backtrack &^ n.sleep
	if left == 0 {
		return false
	}
	n.chosen = left.first()
	return true
}

// extend runs one execution: down the path, the last node of which has a new
// choice, and on from there.
func (s *Scheduler) extend(space *Space, path []node, r *Result) []node {
	s.begin(space)
	known := len(path) - 1
	for at := 0; s.alive != 0; at++ {
		if at == len(path) {
			n, awake := s.newNode(path)
			if !awake {
				r.Redundant++
				s.abandon()
				return path
			}
			path = append(path, n)
		}
		n := &path[at]
		if at < known && (!s.alive.has(n.chosen) || s.pending[n.chosen].key != n.pending[n.chosen].key) {
			s.abandon()
			r.Failure = &Failure{Choices: choices(path[:at+1]), Err: errors.New("the same choices led elsewhere: an execution depends on more than them")}
			return path
		}
		if at >= known {
			for worker := range space.Scripts {
				if s.alive.has(worker) {
					n.pending[worker] = s.pending[worker]
					n.pending[worker].write = s.writes(worker)
				}
			}
		}
		s.step(n.chosen)
		s.order(at)
		if at >= known {
			s.races(path, at)
		}
	}
	r.Executions++
	r.Accesses += len(s.events)
	r.Longest = max(r.Longest, len(s.events))
	r.Failure = s.judge(space)
	return path
}

func choices(path []node) (list []int) {
	for i := range path {
		list = append(list, path[i].chosen)
	}
	return list
}

// newNode returns the node behind the path, unless everything from there equals
// something that has been seen.
func (s *Scheduler) newNode(path []node) (n node, awake bool) {
	if len(path) > 0 {
		before := &path[len(path)-1]
		last := &s.events[len(s.events)-1]
		for worker := range MaxWorkers {
			if before.sleep.has(worker) && !last.conflicts(&before.pending[worker]) {
				n.sleep |= only(worker)
			}
		}
	}
	left := s.alive &^ n.sleep
	if left == 0 {
		return n, false
	}
	n.chosen = left.first()
	n.backtrack = only(n.chosen)
	return n, true
}

// abandon lets the workers finish: there is no way to stop a guest halfway.
func (s *Scheduler) abandon() {
	for s.alive != 0 {
		s.resume(s.alive.first())
	}
	s.parking = false
}

// random runs executions in which each access is anybody's.
func (s *Scheduler) random(space *Space, b Bounds, r *Result) {
	for i := 0; i < b.Random && r.Failure == nil; i++ {
		dice := rand.New(rand.NewPCG(b.Seed, uint64(i))) //nolint:gosec // the choices have to repeat, not to surprise
		s.begin(space)
		for s.alive != 0 {
			s.step(s.alive.nth(dice.IntN(s.alive.len())))
		}
		r.Random++
		r.Accesses += len(s.events)
		r.Longest = max(r.Longest, len(s.events))
		r.Failure = s.judge(space)
	}
}
