// Package limit is the arithmetic of rate limiting. From the time and what a
// window has counted it computes whether a hit may pass, what the window has
// counted afterwards, and how long a denied hit must wait.
//
// Its invariant: a decision is a pure function of integers. Nothing here reads
// a clock or uses a float, and nothing allocates but a Log without room for what
// is added: its caller gives it that. Every duration and instant is in
// nanoseconds, and every count saturates at 2³²−1. It imports nothing but
// math/bits, so that the filter and every test run the same arithmetic.
//
// Three instants recur. last is when a usage was written: it has counted what was in the
// window then. now is the present. Roll brings a usage from last to now, by dropping what has
// left the window since. A function that wants a usage "rolled to now" reads it as it is; one
// that takes last does not need that. at is when a hit was counted that is not of now.
//
// To read it:
//
//	window.go   Algorithm and Window; the stamps of buckets
//	usage.go    Usage, and what is done with it: Roll, Check, Add, Refund, Reset
//	fixed.go    how the fixed windows and the calendar do that,
//	sliding.go  the log and the counter, and
//	tokens.go   the token bucket
//	floor.go    what is kept of the usages of evicted records
//	holds.go    units that running requests hold
//
// What an algorithm has of its own. A new one needs a word in each row:
//
//	              fixed windows   log            counter         bucket        Concurrency  Block
//	Roll          rollFixed       live           rollCounter     refill        nothing      rollFixed
//	Check         paid            checkLog       checkCounter    checkTokens   HeldRetryNs  EndNs
//	Add           Used and open   addLog         Used            takeTokens    see Holds    see Deny
//	Refund        in Refund       refundLog      refundCounter   refundTokens  in Refund    nothing
//	Expiry        paid            newest unit    counterExpiry   latestFull    paid         paid
//	Count         Used            length         weighted        missing       Used         Used
//	Reset         End and paid    Expiry         End             fullAt        now          Expiry
//	Shift         EndNs           each unit      nothing         stamp stays   nothing      EndNs
//	SetBack       to its grid     Shift          less of Prev    Shift         nothing      Shift
//	Floor, Start  Usage's fields  newest unit    Usage's fields  tokenFloor    nothing      Usage's fields
//	Standing      EndNs           Shift          weighing        refill        nothing      EndNs
package limit

// Algorithm says how a window counts.
type Algorithm uint8

const (
	// FixedWindow counts in windows aligned to the clock: [k·W+o, (k+1)·W+o)
	// since the Unix epoch. Source: Hammer FixWindow, glimit.
	FixedWindow Algorithm = 1 + iota
	// FixedWindowPerKey opens a window [now, now+W) at a key's first hit.
	// Source: Hammer FixWindowPerKey, Python limits' FixedWindow, Redis
	// INCR + EXPIRE NX.
	FixedWindowPerKey
	// SlidingWindowLog remembers when each unit was counted and allows Limit of
	// them in any (now−W, now]. Source: Python limits' MovingWindow, Hammer
	// SlidingWindow.
	SlidingWindowLog
	// SlidingWindowCounter adds to the count of the current aligned period that of
	// the previous one, weighted with the share of it that still lies in the window.
	// Source: Python limits, Cloudflare.
	SlidingWindowCounter
	// TokenBucket holds up to Burst tokens and gains Limit of them in PeriodNs,
	// continuously. Source: Hammer TokenBucket, bucket4j, GCRA.
	TokenBucket
	// Calendar is FixedWindow in whole months of the Gregorian calendar; see NewCalendar.
	Calendar
	// Concurrency counts what is held now instead of windows. PeriodNs is how long a hold
	// lasts without a sign of life; see Holds. A counter has one at most.
	Concurrency
	// Block denies every hit for PeriodNs once Deny has counted a denied one. It counts no
	// hit, its Limit is 1, and a counter has one at most.
	Block
)

// Counting are the algorithms that count what has passed: all but Concurrency and Block.
var Counting = [...]Algorithm{
	FixedWindow, FixedWindowPerKey, SlidingWindowLog, SlidingWindowCounter, TokenBucket, Calendar,
}

const (
	// MinPeriodNs is the shortest window, one millisecond.
	MinPeriodNs int64 = 1_000_000
	// MaxPeriodNs is the longest window, 366 days.
	MaxPeriodNs int64 = 366 * 86_400 * 1_000_000_000
	// MinBlockNs is the shortest Block, one second.
	MinBlockNs int64 = 1_000_000_000
	// MaxBlockNs is the longest Block, 30 days.
	MaxBlockNs = 30 * dayNs
	// MaxLog is how many units a SlidingWindowLog can remember at most.
	MaxLog = 512
	// MaxFillNs is the longest time to fill a TokenBucket that is computed, 73 years.
	// If a bucket takes longer and its record is evicted, the floor forgets it then.
	MaxFillNs int64 = 1 << 61
	// Never is the wait of a hit that can never pass.
	Never int64 = -1
)

// Window is the definition of one window: at most Limit units in PeriodNs.
type Window struct {
	Algorithm Algorithm
	Limit     uint32 // units; 0 always denies. TokenBucket: tokens gained in a period
	PeriodNs  int64  // MinPeriodNs … MaxPeriodNs; Calendar: see MonthNs
	OffsetNs  int64  // FixedWindow: shifts the grid, 0 ≤ OffsetNs < PeriodNs; Calendar: ShiftNs + EastNs
	// Jitter, for a FixedWindow only, is up to how many percent of the period each
	// key's grid is shifted; see KeyShift.
	Jitter  uint8
	Elastic bool   // FixedWindowPerKey: every counted hit moves the end to now+W; Block: every denied one
	Burst   uint32 // TokenBucket only: how many tokens it holds when full
	// Units is how many units a SlidingWindowLog remembers: at least the largest
	// limit of any key.
	Units uint16
	// Unlimited lets every hit pass and still counts it.
	Unlimited bool
	// Pays is for a fixed window whose charges are not checked: the units that each window
	// takes off what the one before has used, and the next begins with the rest. 0 = each
	// begins with nothing. Of a rule it is the smallest limit of any key, else Limit: the rule's
	// window rolls usages whose key is not known, and no debt of theirs may end too soon.
	Pays uint32
	// Stamp and FillNs are for a TokenBucket of a rule with overrides: the stamp of
	// the overrides, see Stamps below, and how long the slowest of their buckets takes to
	// fill. Only the rule's own window needs FillNs.
	Stamp  uint16
	FillNs int64
}

// NewBlock returns the Block that lasts for periodNs, or longer if each denied hit prolongs it.
func NewBlock(periodNs int64, prolong bool) Window {
	return Window{Algorithm: Block, Limit: 1, PeriodNs: periodNs, Elastic: prolong}
}

// Same reports whether v and w count alike: they agree in everything but their
// limits. A policy change keeps the usage of each window that stays the same in
// this sense.
func (w Window) Same(v Window) bool { return w.Identity() == v.Identity() }

// Identity has what Same compares, and nothing else.
func (w Window) Identity() Window {
	if w.Algorithm == Concurrency || w.Algorithm == Block {
		return Window{Algorithm: w.Algorithm} // what is held, or blocked, outlives a change of the length
	}
	return Window{
		Algorithm: w.Algorithm, PeriodNs: w.PeriodNs, OffsetNs: w.OffsetNs, Jitter: w.Jitter, Elastic: w.Elastic,
	}
}

// Compare orders windows by everything but their limits, so that the order in
// which a policy lists them does not matter. A Concurrency comes last, after a Block.
func (w Window) Compare(v Window) int {
	for _, d := range [...]int64{
		boolToInt(w.Algorithm == Concurrency) - boolToInt(v.Algorithm == Concurrency),
		boolToInt(w.Algorithm == Block) - boolToInt(v.Algorithm == Block),
		w.PeriodNs - v.PeriodNs,
		int64(w.Algorithm) - int64(v.Algorithm),
		w.OffsetNs - v.OffsetNs,
		int64(w.Jitter) - int64(v.Jitter),
		boolToInt(w.Elastic) - boolToInt(v.Elastic),
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

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// KeyShift returns by how many nanoseconds a jittered window's grid is shifted
// for a key with that stable hash.
func (w Window) KeyShift(hash uint64) int64 {
	if w.Jitter == 0 {
		return 0
	}
	return int64(hash % uint64(max(1, w.PeriodNs*int64(w.Jitter)/100)))
}

// Shifted returns w with its grid moved by shift nanoseconds; see KeyShift.
func (w Window) Shifted(shift int64) Window {
	w.OffsetNs = (w.OffsetNs + shift) % w.PeriodNs
	return w
}

// Stamps. The instant at which a TokenBucket is full implies its tokens only for the limits
// that it was computed with: if the bucket is full in two seconds, it lacks four tokens
// at two a second, but two at one a second. A record holds its tokens beside that
// instant. A floor cannot, because it covers many keys, and an eviction does not know
// which key a record belongs to. So if overrides give some keys limits of their
// own, the low bits of the instant are a stamp: the hash of the overrides that it was
// computed with. A floor with the stamp of other overrides counts as the slowest bucket of
// the rule, empty at the time of writing.
//
// An instant with a stamp is odd, one without is even. The stamp makes it up to
// 4095 ns late.
const stampMask = 1<<12 - 1

// foreignStamp belongs to no set of overrides. The time comes from limits that the
// rule no longer has, so it says nothing about debt.
const foreignStamp = 1

// NewStamp returns the stamp for the hash of a set of overrides: an odd number
// from 3 to 4095.
func NewStamp(hash uint64) uint16 { return 3 + 2*uint16(hash%(stampMask/2)) }

// stamped returns the first instant at or after ns that has w's stamp.
func (w *Window) stamped(ns int64) int64 { return withStamp(ns, int64(w.Stamp)) }

// withStamp leaves the latest instants room for further stamps.
func withStamp(ns, stamp int64) int64 {
	ns = min(ns, maxInstant)
	if stamp == 0 {
		return ns + ns&1
	}
	return ns + (stamp-ns)&stampMask
}

// stampOf returns the stamp of an instant, 0 for none.
func stampOf(ns int64) int64 {
	if ns&1 == 0 {
		return 0
	}
	return ns & stampMask
}

// stale reports whether the instant was computed under other overrides than w's.
func (w *Window) stale(ns int64) bool { return w.Stamp != 0 && stampOf(ns) != int64(w.Stamp) }
