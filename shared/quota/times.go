package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// The times that follow from a definition's windows. The proxy times its leases by them. The service grants by some
// of them, too: how it leases once few units are left is in offer.go of quotaservice/balance.

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	// MaxLeaseNs is how long units may be leased at most.
	MaxLeaseNs = 10 * second

	// MaxRememberNs is how long a worker decides at most about a key by what the service has said of it: that its store
	// has failed for this key, or is starting, or that the key is denied or blocked. After that it asks again.
	MaxRememberNs = second

	// logShare makes a hundredth: units of a log or bucket are leased for at most that part of its span.
	logShare = 100
	// aheadShare makes a tenth: a proxy asks ahead for at most that part of the shortest period.
	aheadShare = 10
	// idleShare makes a twentieth: a proxy keeps a lease without a hit for at most that part of the shortest period.
	idleShare = 20
)

// HorizonNs is how far ahead a proxy should ask: for what it expects to need in
// that time.
func HorizonNs(windows []limit.Window) int64 {
	h := min(MaxLeaseNs, Shortest(windows)/aheadShare)
	for i := range windows {
		if ForgetsByUnit(&windows[i]) {
			h = min(h, LeaseNs(&windows[i]))
		}
	}
	return h
}

// IdleNs is how long a proxy keeps a lease without a hit before it returns the rest.
func IdleNs(windows []limit.Window) int64 { return min(MaxLeaseNs, Shortest(windows)/idleShare) }

// Shortest returns the shortest period, also of a limit.Block or limit.Concurrency. That changes no lease: beside
// these, nothing is leased.
func Shortest(windows []limit.Window) int64 {
	shortest := limit.MaxPeriodNs
	for i := range windows {
		shortest = min(shortest, windows[i].PeriodNs)
	}
	return shortest
}

// ForgetsByUnit reports whether the window forgets units one after the other. Units that are leased from it may be
// spent at any time until the lease ends, so they count as spent then.
func ForgetsByUnit(w *limit.Window) bool {
	return w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
}

// LeaseNs is how long units of a log or a bucket may be leased at most. Those of another window may be leased until
// it ends.
func LeaseNs(w *limit.Window) int64 { return min(MaxLeaseNs, span(w)/logShare) }

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

// MostWaitNs is for how long units can be missing at most, if nobody else asks: until the last of the windows has
// forgotten all that it has counted. It bounds what a service says of waits (Grant.WaitNs), and of resets
// (Standing.ResetNs).
//
//	window                       forgets within      because
//	a block                      limit.MaxBlockNs    it may have begun by a policy whose blocks are longer
//	a hold beside other windows  limit.MaxPeriodNs   costs are charged after the answer, so these may owe
//	another, or a hold alone     forgottenNs         nothing is owed
func MostWaitNs(windows []limit.Window) (most int64) {
	for i := range windows {
		switch w := &windows[i]; {
		case w.Algorithm == limit.Block:
			most = max(most, limit.MaxBlockNs)
		case w.Algorithm == limit.Concurrency && i > 0:
			most = max(most, limit.MaxPeriodNs)
		default:
			most = max(most, forgottenNs(w))
		}
	}
	return most
}

// forgottenNs is how long after units were asked for a window has forgotten them, if no costs are charged:
//   - A fixed window or a log takes its period, a sliding counter two.
//   - A bucket takes twice the time in which it fills: it is at most two bursts below full, one that it held and one
//     that it owes.
//   - A log or bucket counts units when their lease ends, so it takes the lease more.
func forgottenNs(w *limit.Window) int64 {
	n := span(w)
	if w.Algorithm == limit.SlidingWindowCounter || w.Algorithm == limit.TokenBucket {
		n *= 2
	}
	if ForgetsByUnit(w) {
		n += LeaseNs(w)
	}
	return n
}
