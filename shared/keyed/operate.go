package keyed

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// ErrFull is the error of an operation on a new key that finds no room, if [OnFull]
// is not Inherit. Nothing was changed.
var ErrFull = errors.New("no room for another key: raise Capacity, or let OnFull be Inherit")

// Get returns how many units the key has used in the window with the lowest
// Remaining, the first of equals. [Limiter.Detail] returns the usage of all windows.
func (l *Limiter) Get(key string) uint32 {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	return l.used(s, state.AllWindows)
}

// Inc counts n units in every window, whether they fit or not, and returns what
// [Limiter.Get] returns then. A token bucket may go into debt. A sliding log keeps
// only as many units as its limit. The error is [ErrFull] or nil.
func (l *Limiter) Inc(key string, n uint32) (used uint32, err error) {
	return l.change(key, state.AllWindows, n, (*state.Table).Inc)
}

// IncWindow is Inc for the one window with that name or index ("0" is the builder's
// first), and returns its usage. The error is [ErrFull] or names an unknown window.
func (l *Limiter) IncWindow(key, window string, n uint32) (used uint32, err error) {
	i, err := l.find(window)
	if err != nil {
		return 0, err
	}
	return l.change(key, i, n, (*state.Table).Inc)
}

// Set sets the usage of every window to n units counted now, and returns what
// [Limiter.Get] returns then. A window per key starts anew, a sliding log holds n
// units of this instant, a token bucket holds burst−n tokens. A block goes on. The
// error is [ErrFull] or nil.
func (l *Limiter) Set(key string, n uint32) (used uint32, err error) {
	return l.change(key, state.AllWindows, n, (*state.Table).Set)
}

// SetWindow is Set for the one window with that name or index ("0" is the builder's
// first), and returns its usage. The error is [ErrFull] or names an unknown window.
func (l *Limiter) SetWindow(key, window string, n uint32) (used uint32, err error) {
	i, err := l.find(window)
	if err != nil {
		return 0, err
	}
	return l.change(key, i, n, (*state.Table).Set)
}

// operation is an operation of state.Table that changes one window or all.
type operation func(t *state.Table, e *state.Entry, window int, n uint32, evict bool) state.Status

// change runs the operation for the key and returns the window's usage.
func (l *Limiter) change(key string, window int, n uint32, do operation) (used uint32, err error) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.read(now)
	column := state.AllWindows
	if window >= 0 {
		column = l.named[window].column
	}
	if !s.foundRoom("change a key", do(s.table, &s.entry, column, n, l.evict)) {
		return 0, ErrFull
	}
	return l.used(s, window), nil
}

// used returns the usage of a window; for state.AllWindows, of the tightest one.
func (l *Limiter) used(s *shard, window int) uint32 {
	if window == state.AllWindows {
		window = l.tightest(s)
	}
	w, u := l.window(s, window)
	return w.Count(u, s.entry.Now)
}

// find returns the index of the window with that name or index.
func (l *Limiter) find(window string) (int, error) {
	for i := range l.named {
		if l.named[i].name == window && window != "" || strconv.Itoa(i) == window {
			return i, nil
		}
	}
	return 0, fmt.Errorf("find window %q: no window has that name: use the name given with Name, "+
		"or an index from 0 to %d", window, len(l.named)-1)
}

// ExpiresAt returns when the window with the lowest Remaining, the first of equals,
// has forgotten what it has counted so far for the key:
//
//   - a fixed window, and an open window per key, when it ends
//   - a sliding counter, at the end of the last period in which a unit counts
//   - a sliding log, when its newest unit leaves
//   - a token bucket, when it is full
//
// It is the zero Time if no window per key is open, the log is empty, or the bucket
// is full.
func (l *Limiter) ExpiresAt(key string) time.Time {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	w, u := l.window(s, l.tightest(s))
	onGrid := w.Algorithm == limit.FixedWindow || w.OnGrid()
	if !onGrid && u.IsZero() {
		return time.Time{}
	}
	return instant(w.Reset(u, s.entry.Now))
}

// Reset forgets what the key has used in every window, ends its block, and reports
// whether there was anything to forget. After evictions a reset key needs a slot, so that it does not
// start with the usage of evicted keys. So the error is [ErrFull] or nil.
func (l *Limiter) Reset(key string) (had bool, err error) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.read(now)
	had, status := s.table.Reset(&s.entry, l.evict)
	if !s.foundRoom("reset a key", status) {
		return had, ErrFull
	}
	return had, nil
}

// Clean frees the slots of keys whose windows are all over, and returns their
// number. Nobody needs to call it: a new key takes such a slot by itself. It reads
// every key, one shard after the other.
func (l *Limiter) Clean() (freed uint64) {
	now := l.now()
	var scratch state.Scratch
	for i := range l.shards {
		freed += l.shards[i].clean(&scratch, l.windows, now)
	}
	return freed
}

func (s *shard) clean(scratch *state.Scratch, windows []limit.Window, now int64) (freed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.with(toWalk, func() {
		var status state.Status
		freed, status = s.table.Clean(scratch, windows, now)
		must("clean", status)
	})
	return freed
}

// Stats is a limiter's size, and what it has decided since it was built.
type Stats struct {
	Keys     uint64 // live keys: they have counted something in a window that is not over
	Capacity uint64 // live keys at which fewer than 2 in 100 new keys find no room
	Slots    uint64 // how many keys fit at most
	Bytes    uint64 // memory of the counters now; see MaxBytes for the bound

	Allowed     uint64 // allowed hits
	Denied      uint64 // denied hits
	FloorDenied uint64 // denied hits of new keys that started with the usage of evicted keys
	Evicted     uint64 // live keys that made room for new ones
	Full        uint64 // hits and operations that found no room, if OnFull is not Inherit
	Rebased     uint64 // keys moved to the present: the clock was set back since their last hit
	Blocks      uint64 // blocks that denied hits have begun
}

// Stats counts the live keys and adds up what the limiter has decided. It reads
// every key, one shard after the other.
func (l *Limiter) Stats() Stats {
	now := l.now()
	sum := Stats{Capacity: l.capacity, Slots: l.slots}
	var scratch state.Scratch
	for i := range l.shards {
		l.shards[i].addStats(&sum, &scratch, l.windows, now)
	}
	return sum
}

func (s *shard) addStats(sum *Stats, scratch *state.Scratch, windows []limit.Window, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.with(toWalk, func() {
		table, status := s.table.Stats(scratch, windows, now)
		must("count keys", status)
		sum.Keys += table.Keys
	})
	sum.Bytes += s.store.bytes()
	sum.Allowed += s.counts.allowed
	sum.Denied += s.counts.denied
	sum.FloorDenied += s.counts.floorDenied
	sum.Evicted += s.counts.evicted
	sum.Full += s.counts.full
	sum.Rebased += s.counts.rebased
	sum.Blocks += s.counts.blocks
}
