package keyed

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// maxCapacity is the largest capacity of a limiter.
const maxCapacity = 1 << 24

// problems lists what is wrong with a builder.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// check returns an error that lists everything that is wrong with the builder.
func (b *Builder) check() error {
	var p problems
	switch n := len(b.windows); {
	case n == 0:
		p.add("there is no window: add one, such as Window(time.Minute, 10)")
	case n > state.MaxWindows:
		p.add("there are %d windows: a limiter has at most %d", n, state.MaxWindows)
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
		name  string
		owner limit.Algorithm
		where string
	}{
		{"UTCOffset", limit.Calendar, "months: use Months"},
		{"Offset", limit.FixedWindow, "an aligned window: use Window"},
		{"Jitter", limit.FixedWindow, "an aligned window: use Window"},
		{"Elastic", limit.FixedWindowPerKey, "a window per key: use WindowPerKey"},
		{"Burst", limit.TokenBucket, "a token bucket: use TokenBucket"},
	} {
		if w.has(o.name) && w.Algorithm != o.owner && (w.Algorithm != limit.Calendar || o.name != "Offset") {
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
	case w.offset < 0 || w.offset >= w.period:
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
		return fmt.Sprintf("Months of %d", w.Months())
	case limit.Concurrency: // has no window
	}
	return fmt.Sprintf("%s of %s", method, w.period)
}
