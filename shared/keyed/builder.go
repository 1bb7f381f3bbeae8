package keyed

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Builder collects the windows and options of a [Limiter]. Its methods return the
// builder itself, so that calls can be chained. They report no errors:
// [Builder.Build] does.
type Builder struct {
	windows     []window
	capacity    uint32
	onFull      OnFull
	countDenied bool
	block       time.Duration
	blocks      bool // Block was called
	prolongs    bool
	clock       func() time.Time
}

// window is a window that the caller asked for, valid or not.
type window struct {
	limit.Window
	name    string
	options []string // the names of those that were given

	// As the caller gave them, which the limit.Window may have no room for:
	months            int
	offset, utcOffset time.Duration
	jitter            int
}

// OnFull is what a limiter does with a new key when there is no room for it among
// the live keys. That happens only if Capacity is too low for the keys that are
// live at a time, or while a client floods the limiter with invented keys.
type OnFull uint8

const (
	// Inherit makes room. Keys share pages of up to 32. It forgets the key in the new
	// key's page that has used least of its limits, and later new keys in that page
	// start with at least that usage. So no key gains by being forgotten, and new keys
	// may be denied early. It is the default.
	Inherit OnFull = iota
	// Deny denies hits of the new key until the windows of a key in its page are over.
	Deny
	// Allow lets hits of the new key pass without counting them. A hit whose cost is
	// above a limit is denied all the same.
	Allow
)

// DefaultCapacity is the number of live keys that a limiter has room for without
// [Builder.Capacity].
const DefaultCapacity = 65536

// New returns a builder without windows. Add at least one, then call
// [Builder.Build].
func New() *Builder { return &Builder{capacity: DefaultCapacity} }

// Window adds a fixed window that is aligned to the clock: at most that many units
// in each [k·per, (k+1)·per) since the Unix epoch. So a window of a minute starts
// with the minute, UTC, for all keys at once. A key can use twice its limit around
// the boundary of two windows. Options: [Offset], [Jitter], [Name].
//
// In this and the other windows, per is 1 ms to 366 days, and a limit of 0 units
// always denies.
//
// Source: Hammer's FixWindow and glimit's window; it is fixed_window in a policy.
func (b *Builder) Window(per time.Duration, units uint32, options ...WindowOption) *Builder {
	return b.add(limit.FixedWindow, per, units, options)
}

// Months adds a fixed window of 1, 2, 3, 4, 6 or 12 whole months of the Gregorian
// calendar, which starts with a month, UTC, and of which one starts with each year.
// Options: [Offset], below 28 days, [UTCOffset], [Name].
//
// It is fixed_window with per: month or per: year in a policy.
func (b *Builder) Months(months int, units uint32, options ...WindowOption) *Builder {
	const tooMany = 13 // it stands for all larger numbers, whose nanoseconds may overflow
	per := int64(min(max(months, 0), tooMany)) * limit.MonthNs
	b.add(limit.Calendar, time.Duration(per), units, options)
	b.windows[len(b.windows)-1].months = months
	return b
}

// WindowPerKey adds a fixed window that opens with a key's first hit and ends per
// later; hits inside do not move its end. A key can use twice its limit around the
// boundary of two windows, but not all keys do so at the same instant. Options:
// [Elastic], [Name].
//
// Source: Hammer's FixWindowPerKey, the FixedWindow of Python limits, and INCR with
// EXPIRE NX in Redis; it is fixed_window_per_key in a policy.
func (b *Builder) WindowPerKey(per time.Duration, units uint32, options ...WindowOption) *Builder {
	return b.add(limit.FixedWindowPerKey, per, units, options)
}

// SlidingLog adds a window that remembers when each unit was counted: at most that
// many units in any interval of length per. Each key needs 7 bytes for each unit, so
// units is at most 512. Option: [Name].
//
// Source: Hammer's SlidingWindow and the MovingWindow of Python limits; it is
// sliding_window_log in a policy.
func (b *Builder) SlidingLog(per time.Duration, units uint32, options ...WindowOption) *Builder {
	return b.add(limit.SlidingWindowLog, per, units, options)
}

// SlidingCounter adds a window that approximates a sliding one by two counts: that
// of the current period of length per, aligned to the clock, and that of the
// previous period, weighted with the share of it that still lies in the window. Any
// interval of length x up to per admits at most units·(1 + x/per) + 1 units.
// Option: [Name].
//
// Source: the SlidingWindowCounter of Python limits, and Cloudflare's; it is
// sliding_window_counter in a policy.
func (b *Builder) SlidingCounter(per time.Duration, units uint32, options ...WindowOption) *Builder {
	return b.add(limit.SlidingWindowCounter, per, units, options)
}

// TokenBucket adds a bucket that gains that many tokens in each per, continuously.
// It holds as many tokens, or as many as [Burst] says. A hit takes one token for
// each unit of its cost. A new key's bucket is full. Options: [Burst], [Name].
//
// Source: Hammer's TokenBucket, bucket4j's greedy refill, the buckets of glimit and
// go-limiter, and GCRA; it is token_bucket in a policy.
func (b *Builder) TokenBucket(per time.Duration, tokens uint32, options ...WindowOption) *Builder {
	return b.add(limit.TokenBucket, per, tokens, options)
}

func (b *Builder) add(a limit.Algorithm, per time.Duration, units uint32, options []WindowOption) *Builder {
	w := window{Window: limit.Window{Algorithm: a, Limit: units, PeriodNs: int64(per)}}
	switch a {
	case limit.SlidingWindowLog:
		w.Units = uint16(min(units, limit.MaxLog))
	case limit.TokenBucket:
		w.Burst = units
	default:
	}
	for _, o := range options {
		if o.set == nil {
			continue // a zero WindowOption
		}
		w.options = append(w.options, o.name)
		o.set(&w)
	}
	if a == limit.Calendar {
		calendar := limit.NewCalendar(1, int64(w.offset), int64(w.utcOffset))
		w.OffsetNs = calendar.OffsetNs
	}
	b.windows = append(b.windows, w)
	return b
}

// WindowOption is an option of one window. [Builder.Build] returns an error for an
// option that does not belong to the window's algorithm.
type WindowOption struct {
	name string
	set  func(*window)
}

// Offset shifts an aligned window by d, from 0 to less than its period: a window of
// 7 days with an offset of 4 days starts on Mondays, UTC.
func Offset(d time.Duration) WindowOption {
	return WindowOption{"Offset", func(w *window) { w.offset, w.OffsetNs = d, int64(d) }}
}

// UTCOffset says how far the clock is ahead of UTC on which the months of
// [Builder.Months] start: whole minutes from −12 to 14 hours.
func UTCOffset(d time.Duration) WindowOption {
	return WindowOption{"UTCOffset", func(w *window) { w.utcOffset = d }}
}

// Jitter shifts an aligned window by a constant for each key, up to percent (1 to
// 100) of the period, so that the windows of all keys do not end at the same
// instant. A key's constant is the same in all processes.
func Jitter(percent int) WindowOption {
	return WindowOption{"Jitter", func(w *window) { w.jitter, w.Jitter = percent, uint8(percent) }}
}

// Burst sets how many tokens a token bucket holds when it is full, at least 1. The
// usage of an evicted key is remembered for 73 years, which is less than a bucket
// with a very large burst and few tokens takes to fill.
func Burst(tokens uint32) WindowOption {
	return WindowOption{"Burst", func(w *window) { w.Burst = tokens }}
}

// Elastic makes every counted hit move the end of a window per key to a whole period
// after the hit.
//
// Source: with [Builder.CountDenied] it is the deprecated "fixed window with elastic
// expiry" of Python limits.
func Elastic() WindowOption {
	return WindowOption{"Elastic", func(w *window) { w.Elastic = true }}
}

// Name names a window for [Limiter.SetWindow], [Limiter.IncWindow] and [Usage]. A
// name needs at least one character that is not a digit.
func Name(name string) WindowOption {
	return WindowOption{"Name", func(w *window) { w.name = name }}
}

// Capacity sets how many live keys there is room for, 1 to 2²⁴; without it,
// [DefaultCapacity]. A key is live until its windows are over.
//
// The number is exact up to 32 keys (4 to 16 if a key takes much memory). Above
// that, fewer than 2 in 100 new keys find no room when that many are live, and
// there are nearly half as many slots again.
func (b *Builder) Capacity(keys uint32) *Builder {
	b.capacity = keys
	return b
}

// OnFull sets what happens to a new key that finds no room; without it, [Inherit].
func (b *Builder) OnFull(what OnFull) *Builder {
	b.onFull = what
	return b
}

// CountDenied counts denied hits too, in every window, so that a client that does
// not stop stays denied. A sliding log keeps its newest units, up to its limit. It
// cannot be used with a token bucket.
//
// Source: Hammer and the fixed window of Python limits.
func (b *Builder) CountDenied() *Builder {
	b.countDenied = true
	return b
}

// Block denies every hit of a key for d, 1 ms to 30 days, once a hit of it was denied
// because of a limit, whatever the windows say. Further hits do not prolong it, unless
// [Builder.Prolong] says so. [Limiter.Reset] ends it. Blocked keys that make room for
// others block all new keys of their page until the last of these blocks ends.
//
// It is block in a policy.
func (b *Builder) Block(d time.Duration) *Builder {
	b.block, b.blocks = d, true
	return b
}

// Prolong makes each denied hit of a blocked key begin its [Builder.Block] anew. A key that
// is blocked because another one made room prolongs nothing. With [Builder.CountDenied] its
// first denied hit gives it a record. From then on the block is its own, so further hits
// prolong it.
func (b *Builder) Prolong() *Builder {
	b.prolongs = true
	return b
}

// Clock makes the limiter read the time from now, for tests. now must be safe for
// concurrent use if the limiter is used concurrently. It must return times from
// 1970 to 2249; the nearest of these counts for any other. After a step back, a key
// below every window's rate is denied for at most 10 s; an aligned window opens again if
// its start comes again. Without Clock, the limiter uses the system's time of day, and
// notices a step of it within a tenth of a second.
func (b *Builder) Clock(now func() time.Time) *Builder {
	b.clock = now
	return b
}

// Build returns the limiter, or one error that lists everything that is wrong and
// says what would be right. The builder can be changed and built again: the limiters
// share no counts.
func (b *Builder) Build() (*Limiter, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	l := &Limiter{
		evict: b.onFull == Inherit, passFull: b.onFull == Allow,
		countDenied: b.countDenied, blocks: b.blocks, prolongs: b.prolongs, clock: b.clock, seed: maphash.MakeSeed(),
	}
	for _, w := range b.windows {
		l.windows = append(l.windows, w.Window)
		l.jittered = l.jittered || w.Jitter > 0
	}
	if b.blocks {
		l.windows = append(l.windows, limit.NewBlock(int64(b.block), b.prolongs))
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
		s.store.now = l.now
		s.open(l.windows, each, now)
		l.maxBytes += s.maxBytes(l.windows)
		l.slots += page.GeometryFor(l.windows, each).TotalSlots()
	}
	l.capacity = uint64(b.capacity)
	return l, nil
}

// maxCapacity is the largest capacity of a limiter.
const maxCapacity = 1 << 24

// problems lists what is wrong with a builder.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// check returns an error that lists everything that is wrong with the builder.
func (b *Builder) check() error {
	var p problems
	most := page.MaxWindows
	if b.blocks {
		most-- // it takes the place of a window
	}
	switch n := len(b.windows); {
	case n == 0:
		p.add("there is no window: add one, such as Window(time.Minute, 10)")
	case b.blocks && n > most:
		p.add("there are %d windows: a limiter with Block has at most %d", n, most)
	case n > most:
		p.add("there are %d windows: a limiter has at most %d", n, most)
	}
	switch {
	case b.blocks && (int64(b.block) < limit.MinPeriodNs || int64(b.block) > limit.MaxBlockNs):
		p.add("a block of %s: it must be 1ms to 30 days", b.block)
	case b.prolongs && !b.blocks:
		p.add("there is no block to prolong: add Block(time.Hour) or drop Prolong")
	}
	for i := range b.windows {
		b.checkWindow(&p, i)
	}
	if b.capacity < 1 || b.capacity > maxCapacity {
		p.add("a capacity of %d keys: it must be 1 to %d", b.capacity, maxCapacity)
	}
	if b.onFull > Allow {
		p.add("OnFull(%d): it must be Inherit, Deny or Allow", b.onFull)
	}
	if b.clock != nil {
		if now := b.clock(); now.Before(earliest) || now.After(latest) {
			p.add("the clock says %s: it must be from 1970 to 2249, so start a test's clock at time.Unix(0, 0) or later",
				now.Format(time.RFC3339))
		}
	}
	if len(p) == 0 {
		return nil
	}
	return errors.New("build limiter: " + strings.Join(p, "; "))
}

func (b *Builder) checkWindow(p *problems, i int) {
	w := &b.windows[i]
	at := fmt.Sprintf("window %d (%s)", i, w.describe())
	switch {
	case w.Algorithm == limit.Calendar && !new(limit.NewCalendar(w.Months(), 0, 0)).InRange():
		p.add("%s: it must be 1, 2, 3, 4, 6 or 12 months", at)
	case w.Algorithm != limit.Calendar && (w.PeriodNs < limit.MinPeriodNs || w.PeriodNs > limit.MaxPeriodNs):
		p.add("%s: its length must be 1ms to 366 days", at)
	}
	if w.Algorithm == limit.SlidingWindowLog && w.Limit > limit.MaxLog {
		p.add("%s: a sliding log of %d units: it has at most %d, so use SlidingCounter for more", at, w.Limit, limit.MaxLog)
	}
	if w.Algorithm == limit.TokenBucket && b.countDenied {
		p.add("%s: a token bucket cannot count denied hits: drop CountDenied or the bucket", at)
	}
	w.checkOptions(p, at)
	for j := range b.windows[:i] {
		other := &b.windows[j]
		if w.Same(other.Window) {
			p.add("%s: is the same window as window %d: keep the one with the smaller limit", at, j)
		}
		if w.name != "" && w.name == other.name {
			p.add("%s: has the name of window %d, %q: names must differ", at, j, w.name)
		}
	}
}

func (w *window) has(option string) bool { return slices.Contains(w.options, option) }

// checkOptions adds what is wrong with a window's options.
func (w *window) checkOptions(p *problems, at string) {
	for _, o := range [...]struct {
		name   string
		owners []limit.Algorithm
		where  string
	}{
		{"UTCOffset", []limit.Algorithm{limit.Calendar}, "months: use Months"},
		{"Offset", []limit.Algorithm{limit.FixedWindow, limit.Calendar}, "an aligned window: use Window"},
		{"Jitter", []limit.Algorithm{limit.FixedWindow}, "an aligned window: use Window"},
		{"Elastic", []limit.Algorithm{limit.FixedWindowPerKey}, "a window per key: use WindowPerKey"},
		{"Burst", []limit.Algorithm{limit.TokenBucket}, "a token bucket: use TokenBucket"},
	} {
		if w.has(o.name) && !slices.Contains(o.owners, w.Algorithm) {
			p.add("%s: %s belongs to %s or drop it", at, o.name, o.where)
		}
	}
	w.checkOffsets(p, at)
	if w.has("Jitter") && (w.jitter < 1 || w.jitter > 100) {
		p.add("%s: a jitter of %d percent: it must be 1 to 100", at, w.jitter)
	}
	if w.has("Burst") && w.Burst == 0 {
		p.add("%s: a burst of 0 tokens: it must be at least 1", at)
	}
	if w.has("Name") && strings.Trim(w.name, "0123456789") == "" {
		p.add("%s: the name %q: it needs a character that is not a digit, because a number is an index", at, w.name)
	}
}

func (w *window) checkOffsets(p *problems, at string) {
	switch {
	case !w.has("Offset"):
	case w.Algorithm == limit.Calendar && (w.offset < 0 || int64(w.offset) >= limit.MaxOffsetNs):
		p.add("%s: an offset of %s: it must be at least 0 and less than 28 days", at, w.offset)
	case w.Algorithm != limit.Calendar && (w.offset < 0 || int64(w.offset) >= w.PeriodNs):
		p.add("%s: an offset of %s: it must be at least 0 and less than the window's length", at, w.offset)
	}
	if o := int64(w.utcOffset); o < -limit.WestNs || o > limit.EastNs || w.utcOffset%time.Minute != 0 {
		p.add("%s: a UTC offset of %s: it must be whole minutes from -12h to 14h", at, w.utcOffset)
	}
}

// describe names the window by the Builder's method and its length.
func (w *window) describe() string {
	method := "Window"
	switch w.Algorithm {
	case limit.FixedWindow:
	case limit.FixedWindowPerKey:
		method = "WindowPerKey"
	case limit.SlidingWindowLog:
		method = "SlidingLog"
	case limit.SlidingWindowCounter:
		method = "SlidingCounter"
	case limit.TokenBucket:
		method = "TokenBucket"
	case limit.Calendar:
		return fmt.Sprintf("Months of %d", w.months)
	case limit.Concurrency, limit.Block: // have no window
	}
	return fmt.Sprintf("%s of %s", method, time.Duration(w.PeriodNs))
}
