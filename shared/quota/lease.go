package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// For how long units of a key are leased. The first functions need only the windows: the proxy times its
// leases by them too. Those of State are the service's.

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	maxLease = 10 * second
	// shortLease is how long a lease lasts once less than a quarter of the limit is
	// left. A log or bucket whose leases would be shorter leases nothing.
	shortLease = 100 * ms
	// scarce makes a quarter: if less than a quarter of a limit is left, leases are short, and at
	// most a quarter of what is left is granted ahead.
	scarce = 4
	// logShare makes a hundredth: units of a log or bucket are leased for at most that
	// part of its span.
	logShare = 100
	// aheadShare makes a tenth: of the shortest period, a proxy asks ahead for at most that part,
	// and units that are not leased may be spent for at most that part.
	aheadShare = 10
	// slackShare makes a twentieth: of the shortest period, the slack is at most that part, and so is
	// the time for which a proxy keeps a lease without a hit.
	slackShare = 20
)

// SlackNs is ε: how much later than a decision was made the store may apply it.
func SlackNs(windows []limit.Window) int64 { return min(5*ms, Shortest(windows)/slackShare) }

// HorizonNs is how far ahead a proxy should ask: for what it expects to need in
// that time.
func HorizonNs(windows []limit.Window) int64 {
	h := min(maxLease, Shortest(windows)/aheadShare)
	for i := range windows {
		if forgetsByUnit(&windows[i]) {
			h = min(h, span(&windows[i])/logShare)
		}
	}
	return h
}

// IdleNs is how long a proxy keeps a lease without a hit before it returns the rest.
func IdleNs(windows []limit.Window) int64 { return min(maxLease, Shortest(windows)/slackShare) }

// Shortest returns the shortest period.
func Shortest(windows []limit.Window) int64 {
	shortest := limit.MaxPeriodNs
	for i := range windows {
		shortest = min(shortest, windows[i].PeriodNs)
	}
	return shortest
}

// forgetsByUnit reports whether the window forgets units one after the other. Units
// that are leased from it may be spent at any time until the lease ends, so they
// count as spent then: see State.SpendBy.
func forgetsByUnit(w *limit.Window) bool {
	return w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
}

// span is how long the window remembers units.
func span(w *limit.Window) int64 {
	switch {
	case w.Algorithm != limit.TokenBucket:
		return w.PeriodNs
	case w.Unlimited:
		return limit.MaxPeriodNs
	}
	return w.Fill()
}

// MostWaitNs is the longest wait for units, which is also the longest time until all units are
// forgotten. It is the longest of the windows' times:
//   - A fixed window or a log takes its period, a sliding counter two.
//   - A bucket takes twice the time in which it fills, because it owes no more than it holds.
//   - A log or bucket counts units when their lease ends, so it takes the lease more.
//   - If costs are charged after the answer, windows may owe: see owed. Then it is as long as the
//     longest debt takes.
//   - A block may have begun by a policy whose blocks are longer.
func MostWaitNs(windows []limit.Window) (most int64) {
	for i := range windows {
		switch w := &windows[i]; {
		case w.Algorithm == limit.Block:
			most = max(most, limit.MaxBlockNs)
		case w.Algorithm == limit.Concurrency && i > 0: // alone it charges nothing: no window owes
			most = max(most, limit.MaxPeriodNs)
		default:
			most = max(most, forgottenNs(w))
		}
	}
	return most
}

// forgottenNs is how long after units were asked for a window has forgotten them, if it owes nothing.
func forgottenNs(w *limit.Window) int64 {
	n := span(w)
	if w.Algorithm == limit.SlidingWindowCounter || w.Algorithm == limit.TokenBucket {
		n *= 2
	}
	if forgetsByUnit(w) {
		n += LeaseNs(w)
	}
	return n
}

// Leases reports whether units of the window may be leased.
func Leases(w *limit.Window) bool { return !forgetsByUnit(w) || LeaseNs(w) >= shortLease }

// LeaseNs is how long units of the window may be leased at most.
func LeaseNs(w *limit.Window) int64 {
	if forgetsByUnit(w) {
		return min(maxLease, span(w)/logShare)
	}
	return min(maxLease, w.PeriodNs)
}

// Terms are the terms on which units of a key are granted.
type Terms struct {
	// EndNs is when units must have been spent: at the end of the first window that
	// counts them, or before. 0 = units are not leased: they count as spent at once.
	EndNs int64
	// AgainNs is set if there are no terms now, because a window is about to end: ask for them
	// again at this instant.
	AgainNs int64
}

// Unleased are the terms of units that count as spent at once.
var Unleased = Terms{}

// terms returns the terms for leasing.
func (s *State) terms(lease uint32) Terms {
	if lease == LeaseOff {
		return Unleased
	}
	end, first := s.NowNs+maxLease, s.FirstEndNs()
	for i := range s.Windows {
		w := &s.Windows[i]
		switch {
		case w.Elastic || !Leases(w):
			return Unleased
		case forgetsByUnit(w):
			end = min(end, s.NowNs+LeaseNs(w))
		case !w.Unlimited && uint64(s.leftIn(i, 0))*scarce < uint64(w.Limit):
			end = min(end, s.NowNs+shortLease)
		}
	}
	if first-s.NowNs <= SlackNs(s.Windows) {
		return Terms{AgainNs: first}
	}
	return Terms{EndNs: min(end, first)}
}

// FirstEndNs is when the first of the windows ends that count units now.
func (s *State) FirstEndNs() int64 {
	first := int64(1<<63 - 1)
	for i := range s.Windows {
		if w := &s.Windows[i]; !forgetsByUnit(w) && w.Algorithm != limit.Block {
			first = min(first, s.endOf(i))
		}
	}
	return first
}

// endOf is when window i ends, fixed or a counter's period, if it counts units now.
func (s *State) endOf(i int) int64 {
	w, u := &s.Windows[i], &s.Usages[i]
	switch {
	case w.Algorithm != limit.FixedWindowPerKey:
		return w.End(s.NowNs)
	case u.EndNs == 0 || u.Slides:
		return s.NowNs + w.PeriodNs
	}
	return u.EndNs
}

// ValidNs returns how long units may be spent, counted from the moment before they were asked for.
// No unit is spent in a later window than it was counted in, even if it is not leased: the worker
// asked before the store applies the decision, and the store applies it at most SlackNs after
// NowNs. An answer without delay is always in time.
func (s *State) ValidNs(t Terms) int64 {
	if t.EndNs == 0 { // not leased: for a short time, and not beyond the end of the first window
		left := max(s.FirstEndNs()-s.NowNs-SlackNs(s.Windows), 1)
		return min(shortLease, Shortest(s.Windows)/aheadShare, left)
	}
	// Leased: until the lease ends, which is no later than the first window does.
	return t.EndNs - s.NowNs - SlackNs(s.Windows)
}
