package keyed

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Builder collects what a [Limiter] shall be. Its methods return the builder
// itself, to be chained; [Builder.Build] says whether it makes sense.
type Builder struct {
	windows     []window
	capacity    uint32
	onFull      OnFull
	countDenied bool
	clock       func() time.Time
}

// window is a window as it was asked for.
type window struct {
	limit.Window
	period  time.Duration
	name    string
	offset  time.Duration
	jitter  int
	burst   uint32
	options [optionKinds]bool // which were given
}

// OnFull says what happens to a new key when there is no room for it among the
// live ones. A table is full only where Capacity was set too low for the keys
// that are live at a time, or while somebody floods it with invented ones.
type OnFull uint8

const (
	// Inherit makes room: the key among the new one's neighbors that has used
	// least of its limits is forgotten, and whoever starts anew among them starts
	// with at least what it had used. So nobody gains by being forgotten, and new
	// keys may be denied early. The default.
	Inherit OnFull = iota
	// Deny denies hits of the new key until a neighbor's windows are over.
	Deny
	// Allow lets hits of the new key pass without counting them.
	Allow
)

// DefaultCapacity is how many live keys a limiter has room for when
// [Builder.Capacity] does not say otherwise.
const DefaultCapacity = 65536

// New starts a limiter without windows: add at least one, then call
// [Builder.Build].
func New() *Builder { return &Builder{capacity: DefaultCapacity} }

// Window adds a fixed window that is aligned to the clock: at most most units
// in each [k·per, (k+1)·per) since the Unix epoch, so a minute's window starts
// with the minute, UTC, for all keys at once. A key can use twice its limit
// around the boundary of two windows. Options: [Offset], [Jitter], [Name].
//
// per is 1 ms to 366 days, in this and the other windows; most is in units, and
// 0 always denies. It is Hammer's FixWindow, glimit's window and the policy's
// fixed_window.
func (b *Builder) Window(per time.Duration, most uint32, options ...WindowOption) *Builder {
	return b.add(limit.FixedWindow, per, most, options)
}

// WindowPerKey adds a fixed window that opens with a key's first hit and ends
// per later; hits inside do not move it. A key can use twice its limit around
// the boundary of two windows, but not two keys at the same instant. Options:
// [Elastic], [Name].
//
// It is Hammer's FixWindowPerKey, the FixedWindow of Python limits, Redis's INCR
// with EXPIRE NX and the policy's fixed_window_per_key.
func (b *Builder) WindowPerKey(per time.Duration, most uint32, options ...WindowOption) *Builder {
	return b.add(limit.FixedWindowPerKey, per, most, options)
}

// SlidingLog adds a window that remembers when each unit was counted: never
// more than most units in any interval of length per. It needs 7 bytes of each
// key for every unit of most, which is at most 512. Option: [Name].
//
// It is Hammer's SlidingWindow, the MovingWindow of Python limits and the
// policy's sliding_window_log.
func (b *Builder) SlidingLog(per time.Duration, most uint32, options ...WindowOption) *Builder {
	return b.add(limit.SlidingWindowLog, per, most, options)
}

// SlidingCounter adds a window that approximates a sliding one by two counts:
// that of the aligned bucket of now, and the share of the bucket before that
// still lies in the window. Any interval of length x up to per admits at most
// most·(1 + x/per) + 1 units. Option: [Name].
//
// It is the SlidingWindowCounter of Python limits, Cloudflare's and the
// policy's sliding_window_counter.
func (b *Builder) SlidingCounter(per time.Duration, most uint32, options ...WindowOption) *Builder {
	return b.add(limit.SlidingWindowCounter, per, most, options)
}

// TokenBucket adds a bucket that gains tokens of them in per, continuously, and
// holds at most its burst, which is tokens too unless [Burst] says otherwise. A
// new key's bucket is full. Options: [Burst], [Name].
//
// It is Hammer's TokenBucket, bucket4j's greedy refill, glimit's and
// go-limiter's bucket, GCRA and the policy's token_bucket.
func (b *Builder) TokenBucket(per time.Duration, tokens uint32, options ...WindowOption) *Builder {
	return b.add(limit.TokenBucket, per, tokens, options)
}

func (b *Builder) add(a limit.Algorithm, per time.Duration, most uint32, options []WindowOption) *Builder {
	w := window{Window: limit.Window{Algorithm: a, Limit: most, PeriodNs: int64(per)}, period: per}
	for _, o := range options {
		w.options[o.kind] = true
		switch o.kind {
		case offsetOption:
			w.offset = time.Duration(o.value)
			w.OffsetNs = o.value
		case jitterOption:
			w.jitter = int(o.value)
			w.Jitter = uint8(o.value)
		case burstOption:
			w.burst = uint32(o.value)
		case elasticOption:
			w.Elastic = true
		case nameOption:
			w.name = o.text
		default: // there is none
		}
	}
	switch {
	case a == limit.SlidingWindowLog:
		w.Units = uint16(min(most, limit.MaxLog))
	case a == limit.TokenBucket && w.options[burstOption]:
		w.Burst = w.burst
	case a == limit.TokenBucket:
		w.Burst = most
	}
	b.windows = append(b.windows, w)
	return b
}

// Capacity is how many live keys there is room for, 1 to 2²⁴, [DefaultCapacity]
// without it. A key is live until its windows are over. With up to 32 keys (4
// to 16 where a key takes much memory) it is exact; with more, fewer than 2 in
// 100 new keys find no room when that many are live, and nearly half as many
// again fit.
func (b *Builder) Capacity(keys uint32) *Builder {
	b.capacity = keys
	return b
}

// OnFull is what happens to a new key that finds no room; [Inherit] without it.
func (b *Builder) OnFull(what OnFull) *Builder {
	b.onFull = what
	return b
}

// CountDenied counts denied hits too, in every window, so that whoever does not
// stop stays denied; a sliding log keeps the newest units up to its limit. As
// Hammer and the fixed window of Python limits do. Not with a token bucket.
func (b *Builder) CountDenied() *Builder {
	b.countDenied = true
	return b
}

// Clock makes now tell the limiter the time, for tests. It must be safe for
// concurrent use where the limiter is used so, and tell times of 1970 to 2249,
// else the nearest one counts. A clock that steps back re-opens no window. Without
// it the limiter has the system's time of day, whose steps it notices within a tenth
// of a second.
func (b *Builder) Clock(now func() time.Time) *Builder {
	b.clock = now
	return b
}

// Build returns the limiter, or one error that lists everything that is wrong
// and says what would be right. The builder can be used on, and built again: the
// limiters share no counts.
func (b *Builder) Build() (*Limiter, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	l := &Limiter{
		evict: b.onFull == Inherit, passFull: b.onFull == Allow,
		countDenied: b.countDenied, clock: b.clock, seed: maphash.MakeSeed(),
	}
	for _, w := range b.windows {
		l.windows = append(l.windows, w.Window)
		l.jittered = l.jittered || w.Jitter > 0
	}
	slices.SortFunc(l.windows, limit.Window.Compare)
	for _, w := range b.windows {
		column := slices.IndexFunc(l.windows, w.Same)
		l.named = append(l.named, named{name: w.name, column: column})
	}
	l.bits = shardBits(b.capacity)
	l.shards = make([]shard, 1<<l.bits)
	each := (b.capacity-1)>>l.bits + 1
	now := l.now()
	l.maxBytes = allocatedSlice[shard](len(l.shards))
	for i := range l.shards {
		s := &l.shards[i]
		s.open(l.windows, each, now)
		l.maxBytes += s.mostBytes(l.windows)
		l.slots += state.GeometryFor(l.windows, each).TotalSlots()
	}
	l.capacity = uint64(b.capacity)
	return l, nil
}
