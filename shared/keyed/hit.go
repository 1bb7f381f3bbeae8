package keyed

import (
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Never is the RetryAfter of a hit that can never pass: its cost is above a
// limit, or a limit is 0.
const Never time.Duration = -1

// Result is the decision on one hit.
type Result struct {
	// Allowed is whether the hit may pass: every window had room for it, and the key
	// found room among the others or [OnFull] is Allow.
	Allowed bool
	// Full is whether the key found no room among the others. Then nothing was counted,
	// and [OnFull] decided, unless a window had no room for the hit.
	Full bool
	// BlockedUntil is when the key's block ends, the zero Time if it is not blocked; see
	// [Builder.Block]. The fields below say how the windows are, whatever the block says.
	BlockedUntil time.Time
	// Window is the index of the window with the lowest Remaining, the first of
	// equals, in the order of the builder, from 0. Limit, Remaining and ResetAt are of
	// that window, after the hit.
	Window int
	// Limit is how many units the window admits at once: its limit, or the burst of a
	// token bucket.
	Limit uint32
	// Remaining is how many units still fit.
	Remaining uint32
	// RetryAfter is the shortest wait after which this hit would pass every window if
	// no other hit came: 0 if it was allowed, [Never] if it cannot pass. Of a blocked key
	// it is at least the rest of the block. If the key found no room and [OnFull] is Deny,
	// it is the wait for room.
	RetryAfter time.Duration
	// ResetAt is when the window has forgotten what it has counted so far; see
	// [Limiter.ExpiresAt]. It is the time of the hit if nothing is counted and the
	// window is not aligned.
	ResetAt time.Time
}

// Usage is what one window has counted for one key.
type Usage struct {
	Name      string        // from [Name], else empty
	Period    time.Duration // length of the window
	Limit     uint32        // units that it admits at once: its limit, or a token bucket's burst
	Used      uint32        // units counted, or the tokens that a bucket lacks, rounded up
	Remaining uint32        // units that still fit
	ResetAt   time.Time     // as in [Result]
}

// Hit decides whether the key may pass once more, and counts one unit if it may.
func (l *Limiter) Hit(key string) Result { return l.HitN(key, 1) }

// HitN decides whether the key may use cost units at once, and counts all of them if
// it may. A cost of 0 counts nothing, and passes unless a limit is 0 or the key is
// blocked, also if more than a limit is used.
func (l *Limiter) HitN(key string, cost uint32) (r Result) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	l.hit(s, cost, now, &r)
	return r
}

// HitDetail is HitN that also appends the usage of each window after the hit to dst,
// in the builder's order. It allocates only if dst lacks room.
func (l *Limiter) HitDetail(key string, cost uint32, dst []Usage) (r Result, windows []Usage) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	l.hit(s, cost, now, &r)
	return r, l.appendUsage(dst, s)
}

func (l *Limiter) hit(s *shard, cost uint32, now int64, r *Result) {
	s.read(now)
	s.hit(l, cost, r)
	l.report(s, r)
}

// hit decides and counts.
func (s *shard) hit(l *Limiter, cost uint32, r *Result) {
	e := &s.entry
	if e.Rebased {
		s.counts.rebased++
	}
	switch pass := s.table.Check(e, cost); {
	case !passes(pass, e.Now):
		s.deny(l, cost, pass, r)
	case cost == 0 || s.count(l, cost, r):
		s.counts.allowed++
		r.Allowed = true
	}
}

// count counts a hit that every window has room for, and reports whether it may pass.
func (s *shard) count(l *Limiter, cost uint32, r *Result) bool {
	e := &s.entry
	r.Full = !s.foundRoom("count a hit", s.table.Commit(e, cost, l.evict))
	if !r.Full || l.passFull {
		return true
	}
	s.counts.denied++
	r.RetryAfter = wait(max(e.Earliest(), e.Now), e.CallerNs)
	return false
}

// deny denies a hit. pass is when it would pass if nothing were counted for it.
func (s *shard) deny(l *Limiter, cost uint32, pass int64, r *Result) {
	e := &s.entry
	s.counts.denied++
	if e.FromFloor {
		s.counts.floorDenied++
	}
	if cost == 0 || !l.countDenied && !s.beginsBlock(l) {
		s.table.Persist(e)
	} else if s.noteDenial(l, cost, r) {
		pass = s.table.Check(e, cost)
	}
	r.RetryAfter = wait(pass, e.CallerNs)
}

// beginsBlock reports whether a denied hit begins a block, or begins it anew. A key
// without a record may be blocked, too: by the block of a key that made room. That is
// not its own to prolong. If its denials count, this one gives it a record, which has
// the block from then on.
func (s *shard) beginsBlock(l *Limiter) bool {
	isBlocked := s.entry.BlockEnd() != 0
	return l.blocks && (!isBlocked || l.prolongs && s.entry.HasRecord())
}

// noteDenial counts a denied hit, begins a block with it, or both. It reports whether
// the key found room for that.
func (s *shard) noteDenial(l *Limiter, cost uint32, r *Result) bool {
	units := uint32(0)
	if l.countDenied {
		units = cost
	}
	var status state.Status
	if s.beginsBlock(l) {
		status = s.table.Deny(&s.entry, units, l.evict)
	} else {
		status = s.table.Commit(&s.entry, units, l.evict)
	}
	r.Full = !s.foundRoom("count a denied hit", status)
	if !r.Full && s.entry.Blocked {
		s.counts.blocks++
	}
	return !r.Full
}

// foundRoom reports whether the key found room for a change, which ended with that
// status. It counts the keys that did not, and those that had to make room.
func (s *shard) foundRoom(change string, status state.Status) bool {
	if status == state.Full {
		s.counts.full++
		return false
	}
	must(change, status)
	if s.entry.Evicted {
		s.counts.evicted++
	}
	return true
}

func passes(pass, now int64) bool { return pass != limit.Never && pass <= now }

// wait returns the time from now until pass.
func wait(pass, now int64) time.Duration {
	if pass == limit.Never {
		return Never
	}
	return time.Duration(max(pass-now, 0))
}

// Peek returns what [Limiter.Hit] would decide now, and counts nothing. Remaining
// and ResetAt are as they are without the hit. Peek does not look for room: for a
// key that would find none, it returns the result of a new key.
func (l *Limiter) Peek(key string) Result { return l.PeekN(key, 1) }

// PeekN is [Limiter.HitN] without counting.
func (l *Limiter) PeekN(key string, cost uint32) (r Result) {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	pass := s.table.Check(&s.entry, cost)
	r.Allowed = passes(pass, s.entry.Now)
	if !r.Allowed {
		r.RetryAfter = wait(pass, s.entry.CallerNs)
	}
	l.report(s, &r)
	return r
}

// Detail appends the key's usage of each window to dst, in the builder's order. It
// allocates only if dst lacks room.
func (l *Limiter) Detail(key string, dst []Usage) []Usage {
	now := l.now()
	s := l.lock(key)
	defer s.mu.Unlock()
	s.look(now)
	return l.appendUsage(dst, s)
}

// report sets BlockedUntil, Window, Limit, Remaining and ResetAt.
func (l *Limiter) report(s *shard, r *Result) {
	if end := s.entry.BlockEnd(); end != 0 {
		r.BlockedUntil = instant(end)
	}
	for i := range l.named {
		w, u := l.window(s, i)
		if n := w.Remaining(u, s.entry.Now); i == 0 || n < r.Remaining {
			r.Window, r.Remaining = i, n
		}
	}
	w, u := l.window(s, r.Window)
	r.Limit, r.ResetAt = w.Max(), instant(w.Reset(u, s.entry.Now))
}

// window returns the builder's window i on the key's grid, and its usage.
func (l *Limiter) window(s *shard, i int) (*limit.Window, *limit.Usage) {
	column := l.named[i].column
	return &s.key.Windows[column], s.entry.Usage(column)
}

// tightest returns the index of the window with the lowest Remaining.
func (l *Limiter) tightest(s *shard) int {
	var r Result
	l.report(s, &r)
	return r.Window
}

func (l *Limiter) appendUsage(dst []Usage, s *shard) []Usage {
	for i := range l.named {
		w, u := l.window(s, i)
		dst = append(dst, Usage{
			Name: l.named[i].name, Period: time.Duration(w.LengthNs(s.entry.Now)),
			Limit: w.Max(), Used: w.Count(u, s.entry.Now),
			Remaining: w.Remaining(u, s.entry.Now), ResetAt: instant(w.Reset(u, s.entry.Now)),
		})
	}
	return dst
}

func instant(ns int64) time.Time { return time.Unix(0, ns) }
