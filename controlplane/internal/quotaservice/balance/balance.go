// Package balance is what one key has counted over all proxies, and what that leaves: the arithmetic by which the
// quota service decides what it grants.
//
// Its invariant: what is granted has been counted before, and counts until nobody may spend it. So nothing that gets
// lost, repeated or delayed on the way to a proxy admits more than the limit. It knows no store and no stream.
//
// The store keeps a State of each key. A View is how a definition that asks sees it: it has the definition's limits,
// and shares what the State has counted.
//
//	State, of the store            View, of a definition
//	minute  42 used          ◀───  minute, limit 100   58 are left
//	hour    80 used          ◀───  hour, limit 1000
//	day     90 used                another definition asks for the day
//	Holders: worker 7 holds 2
//
// A State is rolled to the present, and a View is asked and counts:
//
//	state.Roll(now)
//	view := View{State: &state, Windows: windows}
//	d := view.Offer(lease, &part)
//	if d.Verdict == Passes {
//		counted = view.Take(d.Units, d.SpendByNs) // and view.Return(&counted, n) takes back what comes back
//	}
//
// To read it, begin with example_test.go, which plays a lease and a hold. Then:
//
//	balance.go  State: how it moves to a later instant, and when it counts nothing any more
//	window.go   one window of a key, with what it has counted: as a State has it, and as a View has it.
//	            Then debt: what counts whatever is left, and how windows pay it
//	view.go     View: what is left, how the key stands, and what counts. Offer is what a part can be granted, and until
//	            when it may be spent
//	hold.go     Note: what a part is granted to hold, and Holders: what workers hold of a key
//
// The invariant is tested on random histories: that of leases in ../neverover_test.go, by a service, its store and
// proxies; that of holds in holdmodel_test.go, by workers whose messages get lost.
package balance

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// State is what one key has counted at NowNs: the quota service's store keeps it. It has the windows of all
// definitions that have asked for the key.
//
// It can be rolled, but only a View is asked and counts, because a State's windows may lack limits. For example, a
// minute with limit 5 and a jitter of 10 seconds, and a log of 5 units:
//
//	in a State  as its definition has it, once that has asked  limit 5, ends at 12:01:00               Units 5
//	            as read from bytes                             no limit, ends at 12:01:00              no Units
//	in a View   shifted for the key                            limit 5, ends at 12:01:04 for this key  Units 5
//	            with Units for what the State has counted      the same                                Units 7
//
// Rolling needs no more than the bytes have: of a bucket, they have its Limit and Burst. If a window ends by the key's
// own grid, its usage has the end. If units of the key are held, they have Pays. For charging, see chargeSilent.
type State struct {
	NowNs   int64
	Windows []limit.Window
	Usages  []limit.Usage // by window
	Holders Holders

	bucketSpendBy []int64 // by window, the SpendBy of the buckets; nil = no window is a bucket
}

// NewState returns a key that has counted nothing.
func NewState(now int64, windows []limit.Window) State {
	s := State{NowNs: now, Windows: windows, Usages: make([]limit.Usage, len(windows))}
	for i := range windows {
		s.SetSpendBy(i, now)
	}
	return s
}

// SetSpendBy sets the SpendBy of a bucket, which is also the instant of its usage: see window. That of another window
// follows from its usage, so this does nothing to it.
func (s *State) SetSpendBy(i int, spendBy int64) {
	if s.Windows[i].Algorithm != limit.TokenBucket {
		return
	}
	if s.bucketSpendBy == nil {
		s.bucketSpendBy = make([]int64, len(s.Windows))
	}
	s.bucketSpendBy[i] = spendBy
}

// SpendBy is the instant until which the units that a window has counted may be spent.
func (s *State) SpendBy(i int) int64 { return s.window(i).spendBy() }

func (s *State) window(i int) stateWindow { return s.windowWith(&s.Windows[i], i) }

// windowWith returns window i with the limits of a definition.
func (s *State) windowWith(def *limit.Window, i int) stateWindow {
	w := stateWindow{def: def, usage: &s.Usages[i], nowNs: s.NowNs}
	if def.Algorithm == limit.TokenBucket {
		w.bucketSpendBy = &s.bucketSpendBy[i]
	}
	return w
}

// Roll brings s to now, or leaves it as it is if it is later already. A worker that has been silent for too long
// is charged what it held, at the instant when its hold ended.
func (s *State) Roll(now int64) {
	for _, silent := range s.Holders.dropSilent(now) {
		s.rollWindows(silent.endNs())
		s.chargeSilent(silent.Held)
	}
	s.rollWindows(now)
}

func (s *State) rollWindows(now int64) {
	now = max(now, s.NowNs)
	for i := range s.Windows {
		s.window(i).roll(now)
	}
	s.NowNs = now
}

// SetBack moves s back to now, because the clock was set back.
func (s *State) SetBack(now int64) {
	for i := range s.Windows {
		s.Windows[i].SetBack(&s.Usages[i], s.NowNs, now)
	}
	for i := range s.bucketSpendBy {
		s.bucketSpendBy[i] += now - s.NowNs
	}
	for i := range s.Holders {
		s.Holders[i].NotedNs += now - s.NowNs
	}
	s.NowNs = now
}

// ExpiryNs returns an instant from which s counts and holds nothing, if nobody asks for the key until then. It is the
// first one if one worker holds units, and else not long after it: what is held counts as charged when the last hold
// ends, beside what counts then.
func (s *State) ExpiryNs() int64 {
	expiry := max(s.NowNs, s.Holders.endNs())
	if held := s.Holders.Held(); held > 0 {
		after := *s
		after.Holders = nil // all have ended by then
		after = after.Clone()
		s = &after
		s.rollWindows(expiry)
		s.chargeSilent(held)
	}
	for i := range s.Windows {
		expiry = max(expiry, s.window(i).expiryNs())
	}
	return expiry
}

// Clone returns a copy. It shares only the Windows, which nothing changes in place.
func (s *State) Clone() State {
	c := *s
	c.Usages, c.bucketSpendBy = slices.Clone(s.Usages), slices.Clone(s.bucketSpendBy)
	c.Holders = slices.Clone(s.Holders)
	for i := range c.Usages {
		c.Usages[i].Log = slices.Clone(c.Usages[i].Log)
	}
	return c
}

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	// saturated is the highest count: a count that has reached it may stand for more.
	saturated = 1<<32 - 1
)

// minus is a - b, at least 0.
func minus(a, b uint32) uint32 { return a - min(a, b) }
