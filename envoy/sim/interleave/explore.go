package interleave

import (
	"errors"
	"math/rand/v2"
)

// Bounds are how much of a space Explore searches.
type Bounds struct {
	Max    int    // executions of the search; 0 = no bound
	Random int    // random executions after a search that reached Max
	Seed   uint64 // of the random executions; execution i takes its choices from (Seed, i)
}

// Result is what an exploration has found.
type Result struct {
	Executions int  // executions of the search, no two of them equal
	Exhaustive bool // there are no other executions
	Random     int  // random executions
	Accesses   int  // of all executions
	Failure    *Failure
}

// Explore runs a space's executions until one is judged wrong.
//
// Two executions are equal if swapping adjacent accesses that commute turns one into
// the other. Accesses of different keys commute, and so do two reads. Explore
// completes one of all equal executions. The search is source-DPOR with sleep sets:
// Abdulla, Aronis, Jonsson, Sagonas, "Optimal dynamic partial order reduction",
// 2014, algorithm 1.
func (s *Scheduler) Explore(space Space, b Bounds) (r Result) {
	var path []node
	for r.Failure == nil {
		if b.Max > 0 && r.Executions == b.Max {
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
	chosen    int // worker
	backtrack set // workers that must go from here
	sleep     set // workers that need not: they went from here or from an earlier node
	pending   [MaxWorkers]access
}

// next chooses the next worker to go from here, after the search has seen all that
// follows the last choice. It returns false if none is left.
func (n *node) next() bool {
	n.sleep |= only(n.chosen)
	left := n.backtrack &^ n.sleep
	if left == 0 {
		return false
	}
	n.chosen = left.first()
	return true
}

// extend runs one execution: along the path, whose last node has a new choice, and
// on from there. It returns the new path.
func (s *Scheduler) extend(space *Space, path []node, r *Result) []node {
	s.begin(space)
	known := len(path) - 1
	for at := 0; s.alive != 0; at++ {
		if at == len(path) {
			n, awake := s.newNode(path)
			if !awake {
				s.abandon()
				return path
			}
			path = append(path, n)
		}
		n := &path[at]
		if at < known && (!s.alive.has(n.chosen) || s.pending[n.chosen].key != n.pending[n.chosen].key) {
			r.Failure = s.failure(errors.New("the same choices led to another execution: it depends on something else"))
			s.abandon()
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
		s.setClock(at)
		if at >= known {
			s.races(path, at)
		}
	}
	r.Executions++
	r.Accesses += len(s.events)
	r.Failure = s.judge(space)
	return path
}

// newNode returns the node at the end of the path. awake is false if every execution
// from there equals an earlier one.
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

// abandon lets the workers finish, because a guest cannot be stopped halfway.
func (s *Scheduler) abandon() {
	for s.alive != 0 {
		s.resume(s.alive.first())
	}
	s.parking = false
}

// random runs executions that choose a random worker for each access.
func (s *Scheduler) random(space *Space, b Bounds, r *Result) {
	for i := 0; i < b.Random && r.Failure == nil; i++ {
		dice := rand.New(rand.NewPCG(b.Seed, uint64(i))) //nolint:gosec // the choices must be repeatable
		s.begin(space)
		for s.alive != 0 {
			s.step(s.alive.nth(dice.IntN(s.alive.len())))
		}
		r.Random++
		r.Accesses += len(s.events)
		r.Failure = s.judge(space)
	}
}
