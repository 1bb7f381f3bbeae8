package keyed

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// ErrFull says that there is no room for a key that is not there yet, and
// [OnFull] forbids to make some.
var ErrFull = errors.New("no room for another key: raise Capacity, or let OnFull be Inherit")

// Get returns how many units the key has used in the window with least
// remaining, the first of equals; [Limiter.Detail] has all of them.
func (l *Limiter) Get(key string) uint32 {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	return l.used(s, state.AllWindows)
}

// Inc counts n units in every window, whether they fit or not, and returns what
// [Limiter.Get] then does. A token bucket may go into debt; a sliding log keeps
// no more units than its limit. The error is [ErrFull] or nil.
func (l *Limiter) Inc(key string, n uint32) (used uint32, err error) {
	return l.change(key, state.AllWindows, n, (*state.Table).Inc)
}

// IncWindow is Inc on the one window of that name or index ("0" is the
// builder's first), and returns its usage.
func (l *Limiter) IncWindow(key, window string, n uint32) (used uint32, err error) {
	i, err := l.find(window)
	if err != nil {
		return 0, err
	}
	return l.change(key, i, n, (*state.Table).Inc)
}

// Set makes every window say that the key has used n units by now, and returns
// what [Limiter.Get] then does. A window per key starts anew, a sliding log has
// n units of this instant, a token bucket holds burst−n. The error is [ErrFull]
// or nil.
func (l *Limiter) Set(key string, n uint32) (used uint32, err error) {
	return l.change(key, state.AllWindows, n, (*state.Table).Set)
}

// SetWindow is Set on the one window of that name or index ("0" is the
// builder's first), and returns its usage.
func (l *Limiter) SetWindow(key, window string, n uint32) (used uint32, err error) {
	i, err := l.find(window)
	if err != nil {
		return 0, err
	}
	return l.change(key, i, n, (*state.Table).Set)
}

func (l *Limiter) change(key string, window int, n uint32, do func(*state.Table, *state.Entry, int, uint32, bool) state.Status) (uint32, error) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.read(now)
	column := state.AllWindows
	if window >= 0 {
		column = l.named[window].column
	}
	switch status := do(s.table, &s.entry, column, n, l.evict); status {
	case state.Full:
		s.counts.full++
		return 0, ErrFull
	default:
		must("change a key", status)
	}
	s.evicted()
	return l.used(s, window), nil
}

// used is the usage of a window, or of the one with least remaining.
func (l *Limiter) used(s *shard, window int) uint32 {
	if window == state.AllWindows {
		window = l.tightest(s)
	}
	w, u := l.window(s, window)
	return w.Count(u, s.entry.Now)
}

// find returns the index of the window of that name, or with that index.
func (l *Limiter) find(window string) (int, error) {
	for i := range l.named {
		if l.named[i].name == window && window != "" || strconv.Itoa(i) == window {
			return i, nil
		}
	}
	return 0, fmt.Errorf("find window %q: there is none of that name: use the name given with Name, or an index from 0 to %d", window, len(l.named)-1)
}

// ExpiresAt returns when the window with least remaining, the first of equals,
// starts anew for the key: a fixed window and an open window per key when they
// end, a sliding counter at the end of the bucket in which what it has counted
// counts for the last time, a sliding log when its newest unit leaves it, a
// token bucket when it is full. It is the zero Time where there is nothing to
// wait for: no window of the key's own is open, the log is empty, the bucket
// full.
func (l *Limiter) ExpiresAt(key string) time.Time {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	w, u := l.window(s, l.tightest(s))
	onGrid := w.Algorithm == limit.FixedWindow || w.Algorithm == limit.SlidingWindowCounter
	if !onGrid && u.IsZero() {
		return time.Time{}
	}
	return instant(w.Reset(u, s.entry.Now))
}

// Reset forgets what the key has used in every window, and reports whether
// there was anything to forget. The error is [ErrFull] or nil: a key that would
// have to start from what evicted ones had used needs a place that says
// otherwise.
func (l *Limiter) Reset(key string) (had bool, err error) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.read(now)
	had, status := s.table.Reset(&s.entry, l.evict)
	if status == state.Full {
		s.counts.full++
		return had, ErrFull
	}
	must("reset a key", status)
	s.evicted()
	return had, nil
}

// Clean frees the places of keys whose windows are all over, and returns how
// many. There is no need for it: such a place is re-used as soon as a new key
// wants one. It looks at every key, one shard after the other.
func (l *Limiter) Clean() (freed uint64) {
	now := l.now()
	for i := range l.shards {
		freed += l.shards[i].clean(l.windows, now)
	}
	return freed
}

func (s *shard) clean(windows []limit.Window, now int64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.walking = true
	n, status := s.table.Clean(&s.entry, windows, now)
	s.store.walking = false
	must("clean", status)
	return n
}
