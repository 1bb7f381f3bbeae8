package keyed

import (
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Never is the RetryAfter of a hit that can never pass: its cost is above a
// limit, or a limit is 0.
const Never time.Duration = -1

// Result is the decision on one hit.
type Result struct {
	// Allowed says whether every window had room for the hit.
	Allowed bool
	// Full says that the key found no room among the others, so that [OnFull]
	// decided and nothing was counted.
	Full bool
	// Window is the index of the window with least remaining, the first of
	// equals, as given to the builder from 0. Limit, Remaining and ResetAt are of
	// that window, after the hit.
	Window int
	// Limit is how many units the window admits at once: its limit, or the burst
	// of a token bucket.
	Limit uint32
	// Remaining is how many units still fit.
	Remaining uint32
	// RetryAfter is the smallest wait after which this very hit would pass every
	// window if nobody else came: 0 when it was allowed, [Never] when it cannot.
	RetryAfter time.Duration
	// ResetAt is when the window's count starts anew; see [Limiter.ExpiresAt]. It
	// is the time of the hit where nothing is counted.
	ResetAt time.Time
}

// Usage is what one window has counted for one key.
type Usage struct {
	Name      string        // as the builder named it, else empty
	Period    time.Duration // length of the window
	Limit     uint32        // units it admits at once; a token bucket's burst
	Used      uint32        // units counted; tokens missing from a token bucket, a part of one counting as one
	Remaining uint32        // units that still fit
	ResetAt   time.Time     // when the count starts anew; the present where nothing is counted
}

// Hit asks whether the key may do it once more, and counts it if so.
func (l *Limiter) Hit(key string) Result { return l.HitN(key, 1) }

// HitN asks whether the key may use cost units at once, and counts them if so:
// all of them or none. A cost of 0 counts nothing, and passes unless a window
// is used beyond its limit or its limit is 0.
func (l *Limiter) HitN(key string, cost uint32) (r Result) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	l.hit(s, cost, now, &r)
	return r
}

// HitDetail is HitN that also appends to dst what each window holds after the
// hit, in the builder's order. It allocates only where dst lacks room.
func (l *Limiter) HitDetail(key string, cost uint32, dst []Usage) (r Result, windows []Usage) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	l.hit(s, cost, now, &r)
	return r, l.appendUsage(dst, s)
}

func (l *Limiter) hit(s *shard, cost uint32, now int64, r *Result) {
	s.read(now)
	if pass := s.hit(l, cost, r); !r.Allowed {
		r.RetryAfter = wait(pass, now)
	}
	l.report(s, r)
}

// Peek is [Limiter.Hit] without counting: what a hit would be told now.
// Remaining and ResetAt are as things stand, without that hit. It does not look
// for room: a key that a full table would turn away peeks as a new key.
func (l *Limiter) Peek(key string) Result { return l.PeekN(key, 1) }

// PeekN is [Limiter.HitN] without counting.
func (l *Limiter) PeekN(key string, cost uint32) (r Result) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	pass := s.table.Check(&s.entry, cost)
	if r.Allowed = passes(pass, s.entry.Now); !r.Allowed {
		r.RetryAfter = wait(pass, now)
	}
	l.report(s, &r)
	return r
}

// Detail appends to dst what each window holds for the key, in the builder's
// order. It allocates only where dst lacks room.
func (l *Limiter) Detail(key string, dst []Usage) []Usage {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	return l.appendUsage(dst, s)
}

// report fills in what the windows hold.
func (l *Limiter) report(s *shard, r *Result) {
	for i := range l.named {
		w, u := l.window(s, i)
		if left := w.Remaining(u, s.entry.Now); i == 0 || left < r.Remaining {
			r.Window, r.Remaining = i, left
		}
	}
	w, u := l.window(s, r.Window)
	r.Limit, r.ResetAt = w.Max(), instant(w.Reset(u, s.entry.Now))
}

// window returns the user's window i with the key's limits and what it has
// counted.
func (l *Limiter) window(s *shard, i int) (*limit.Window, *limit.Usage) {
	column := l.named[i].column
	return &s.key.Windows[column], s.table.Usage(&s.entry, column)
}

// tightest returns the index of the window with least remaining.
func (l *Limiter) tightest(s *shard) int {
	var r Result
	l.report(s, &r)
	return r.Window
}

func (l *Limiter) appendUsage(dst []Usage, s *shard) []Usage {
	for i := range l.named {
		w, u := l.window(s, i)
		dst = append(dst, Usage{
			Name: l.named[i].name, Period: time.Duration(w.PeriodNs),
			Limit: w.Max(), Used: w.Count(u, s.entry.Now),
			Remaining: w.Remaining(u, s.entry.Now), ResetAt: instant(w.Reset(u, s.entry.Now)),
		})
	}
	return dst
}

func instant(ns int64) time.Time { return time.Unix(0, ns) }
