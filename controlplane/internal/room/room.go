// Package room divides what there is so much of, such as memory, among callers.
//
// Its invariant: no more is taken than there is, and one caller has at most three
// quarters of it, so that somebody who takes all that he gets keeps nobody else out.
//
// It must never import what is divided.
package room

import "sync"

// Room is so much of something. Make one with New.
type Room struct {
	all, ofOne int

	mu    sync.Mutex
	taken int
	of    map[string]int // by caller
}

// New returns a room of that size.
func New(all int) *Room { return &Room{all: all, ofOne: OfOne(all), of: map[string]int{}} }

// OfOne is how much of a room one caller may have.
func OfOne(all int) int { return all / 4 * 3 }

// Take takes n for the caller, who gives it back with Free, and reports whether there
// was as much.
func (r *Room) Take(who string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken+n > r.all || r.of[who]+n > r.ofOne {
		return false
	}
	r.taken += n
	r.of[who] += n
	return true
}

// Free gives back n of what the caller took.
func (r *Room) Free(who string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= n
	if r.of[who] -= n; r.of[who] == 0 {
		delete(r.of, who)
	}
}
