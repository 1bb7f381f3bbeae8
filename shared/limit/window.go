// Package limit is the arithmetic of rate limiting: given what a window has
// counted and the time, may this hit pass, what does the window hold
// afterwards, how long is the wait.
//
// Its invariant: a decision is a pure function of integers. Nothing here reads
// a clock, allocates, or uses a float; every duration and instant is
// nanoseconds, every count saturates at 2³²−1. It imports nothing but
// math/bits, so that the filter and every test run the very same arithmetic.
package limit

// Algorithm says how a window counts.
type Algorithm uint8

const (
	// FixedWindow counts in windows aligned to the clock: [k·W+o, (k+1)·W+o)
	// since the Unix epoch. Source: Hammer FixWindow, ADR-003, glimit.
	FixedWindow Algorithm = 1 + iota
	// FixedWindowPerKey opens a window [now, now+W) at a key's first hit.
	// Source: Hammer FixWindowPerKey, Python limits' FixedWindow, Redis
	// INCR + EXPIRE NX.
	FixedWindowPerKey
)

const (
	// MinPeriodNs is the shortest window, one millisecond.
	MinPeriodNs int64 = 1_000_000
	// MaxPeriodNs is the longest window, 366 days.
	MaxPeriodNs int64 = 366 * 86_400 * 1_000_000_000
	// Never is the wait of a hit that can never pass.
	Never int64 = -1
)

// Window is the definition of one window: at most Limit units in PeriodNs.
type Window struct {
	Algorithm Algorithm
	Limit     uint32 // units; 0 always denies
	PeriodNs  int64  // MinPeriodNs … MaxPeriodNs
	OffsetNs  int64  // FixedWindow only: shifts the grid, 0 ≤ OffsetNs < PeriodNs
}

// Same reports whether v counts what w counts: the two agree in everything but
// their limit. A policy change keeps the usage of a window as long as its
// identity stays the same.
func (w Window) Same(v Window) bool {
	v.Limit = w.Limit
	return w == v
}

// Compare orders windows by identity, so that the order in which a policy lists
// them decides nothing.
func (w Window) Compare(v Window) int {
	for _, d := range [...]int64{
		w.PeriodNs - v.PeriodNs, int64(w.Algorithm) - int64(v.Algorithm), w.OffsetNs - v.OffsetNs,
	} {
		switch {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
	}
	return 0
}
