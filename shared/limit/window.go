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
	// SlidingWindowLog remembers when each unit was counted and allows Limit of
	// them in any (now−W, now]. Source: Python limits' MovingWindow, Hammer
	// SlidingWindow.
	SlidingWindowLog
	// SlidingWindowCounter weighs the count of the bucket before with the share
	// of it that still lies in the window. Source: Python limits, Cloudflare.
	SlidingWindowCounter
	// TokenBucket holds up to Burst tokens and gains Limit of them in PeriodNs,
	// continuously. Source: Hammer TokenBucket, bucket4j, GCRA.
	TokenBucket
)

const (
	// MinPeriodNs is the shortest window, one millisecond.
	MinPeriodNs int64 = 1_000_000
	// MaxPeriodNs is the longest window, 366 days.
	MaxPeriodNs int64 = 366 * 86_400 * 1_000_000_000
	// MaxLog is the most units a SlidingWindowLog can be asked to remember.
	MaxLog = 512
	// MaxFillNs is the longest that a TokenBucket's fill is told to be, 73 years:
	// one that takes longer is forgotten after that where its record is evicted.
	MaxFillNs int64 = 1 << 61
	// Never is the wait of a hit that can never pass.
	Never int64 = -1
)

// Window is the definition of one window: at most Limit units in PeriodNs.
type Window struct {
	Algorithm Algorithm
	Limit     uint32 // units; 0 always denies. TokenBucket: tokens gained in a period
	PeriodNs  int64  // MinPeriodNs … MaxPeriodNs
	OffsetNs  int64  // FixedWindow only: shifts the grid, 0 ≤ OffsetNs < PeriodNs
	// Jitter is the percentage of the period by which each key's grid is
	// shifted, FixedWindow only; KeyShift turns a key's hash into the shift.
	Jitter  uint8
	Elastic bool   // FixedWindowPerKey only: every counted hit moves the end to now+W
	Burst   uint32 // TokenBucket only: the most tokens it holds
	// Units is how many units a SlidingWindowLog remembers: at least the largest
	// limit that any key has.
	Units uint16
	// Unlimited lets every hit pass and still counts it.
	Unlimited bool
	// Stamp and FillNs are a TokenBucket's where keys have limits of their own:
	// which set of such limits that is, see NewStamp, and how long the slowest of
	// those buckets takes to fill. FillNs is needed of the rule's window alone.
	Stamp  uint16
	FillNs int64
}

// Same reports whether v counts what w counts: the two agree in everything but
// their limits. A policy change keeps the usage of a window as long as its
// identity stays the same.
func (w Window) Same(v Window) bool { return w.identity() == v.identity() }

func (w Window) identity() Window {
	return Window{Algorithm: w.Algorithm, PeriodNs: w.PeriodNs, OffsetNs: w.OffsetNs, Jitter: w.Jitter, Elastic: w.Elastic}
}

// Compare orders windows by identity, so that the order in which a policy lists
// them decides nothing.
func (w Window) Compare(v Window) int {
	for _, d := range [...]int64{
		w.PeriodNs - v.PeriodNs, int64(w.Algorithm) - int64(v.Algorithm), w.OffsetNs - v.OffsetNs,
		int64(w.Jitter) - int64(v.Jitter), one(w.Elastic) - one(v.Elastic),
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

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// KeyShift returns how far the grid of a key with that stable hash is shifted.
func (w Window) KeyShift(hash uint64) int64 {
	if w.Jitter == 0 {
		return 0
	}
	return int64(hash % uint64(max(1, w.PeriodNs*int64(w.Jitter)/100)))
}

// Shifted returns w with its grid moved by shift, as KeyShift gives it.
func (w Window) Shifted(shift int64) Window {
	w.OffsetNs = (w.OffsetNs + shift) % w.PeriodNs
	return w
}
