package balance

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// How long leases last, and how much is granted ahead, if few units are left. The times for when enough are left are
// in times.go of package quota: a proxy needs these, too.
const (
	// leastAhead is how many units must be left for some to be granted ahead.
	leastAhead = 16
	// scarce makes a quarter: if less than a quarter of a limit is left, leases are short, and at most a quarter of
	// what is left is granted ahead.
	scarce = 4
	// shortLease is how long a lease lasts once less than a quarter of the limit is left. A log or bucket whose
	// leases would be shorter leases nothing.
	shortLease = 100 * ms
	// soonShare makes a tenth: units that are not leased may be spent for at most that part of the shortest period.
	soonShare = 10
	// slackShare makes a twentieth: the slack is at most that part of the shortest period.
	slackShare = 20
)

// SlackNs is how much later than a decision was made the store may apply it.
func SlackNs(windows []limit.Window) int64 { return min(5*ms, quota.Shortest(windows)/slackShare) }

// Offer is what View.Offer finds.
type Offer struct {
	Verdict   Verdict
	Units     uint32 // if it Passes: what waits and what is granted ahead
	SpendByNs int64  // if it Passes: the end of their lease; NowNs if they are not leased
}

// Verdict says whether a part passes.
type Verdict uint8

// The verdicts.
const (
	Passes Verdict = iota
	TooFew         // too few units are left for it, or the key is blocked
	NotYet         // a lease would end within SlackNs with its window: decide again at FirstEndNs
)

// Offer finds what a part can be granted: the units that wait, as far as they are left, and ahead of need at most a
// quarter of the rest. It counts nothing: Take does. If the cost does not fit with a lease and fits without one, the
// units are granted without a lease.
//
// For example, 3 units of a limit of 1000 a minute are asked for, and 600 ahead, 40 s before the minute ends:
//
//	left  granted                   may be spent
//	400   3 + 397/4 = 102           for 10 s, less SlackNs
//	200   3 + 197/4 = 52            for 100 ms, less SlackNs, because less than a quarter is left
//	15    3, because 15 are few     for 100 ms, less SlackNs
//	2     2, or none if the first request costs 3
func (v *View) Offer(lease uint32, p *quota.Part) Offer {
	now, firstEndNs := v.State.NowNs, v.FirstEndNs()
	endNs := v.leaseEndNs(lease, firstEndNs)
	if endNs > now && firstEndNs-now <= SlackNs(v.Windows) {
		return Offer{Verdict: NotYet}
	}
	left := minus(v.leftUntil(endNs), v.State.Holders.Held())
	if left < p.Cost && endNs > now {
		endNs = now
		left = v.LeftBesideHeld()
	}
	if left < p.Cost || v.IsBlocked() {
		return Offer{Verdict: TooFew}
	}
	d := Offer{Verdict: Passes, Units: min(left, max(p.Waiting, p.Cost)), SpendByNs: endNs}
	if endNs == now || left < leastAhead {
		return d
	}
	ahead := min(v.aheadUntil(endNs, p.Ahead), (left-d.Units)/scarce)
	if lease != quota.LeaseAuto {
		ahead = min(ahead, lease)
	}
	d.Units += ahead
	return d
}

// leaseEndNs is when a lease that began now would end: at firstEndNs, or before. It is now if nothing is leased.
func (v *View) leaseEndNs(lease uint32, firstEndNs int64) int64 {
	now := v.State.NowNs
	if lease == quota.LeaseOff {
		return now
	}
	end := min(now+quota.MaxLeaseNs, firstEndNs)
	for i := range v.Windows {
		w := &v.Windows[i]
		switch {
		case w.Elastic: // each hit moves its end, and so would each unit that is spent later
			return now
		case quota.ForgetsByUnit(w):
			leaseNs := quota.LeaseNs(w)
			if leaseNs < shortLease {
				return now
			}
			end = min(end, now+leaseNs)
		case !w.Unlimited && uint64(v.LeftIn(i))*scarce < uint64(w.Limit):
			end = min(end, now+shortLease)
		}
	}
	return end
}

// aheadUntil is what a proxy expects to need until a lease ends. The proxy says what it needs in quota.HorizonNs: of
// a lease that ends much sooner, because a window does, it needs less.
func (v *View) aheadUntil(endNs int64, ahead uint32) uint32 {
	rest, horizon := endNs-v.State.NowNs, quota.HorizonNs(v.Windows)
	if rest >= min(shortLease, horizon) {
		return ahead
	}
	return uint32(uint64(ahead) * uint64(rest) / uint64(horizon))
}

// ValidNs returns how long units may be spent, counted from the moment before they were asked for; spendBy is the
// Offer's. No unit is spent in a later window than it was counted in, even if it is not leased: the worker
// asked before the store applies the decision, and the store applies it at most SlackNs after NowNs.
//
// What is not leased may be spent for 1 ns at least, so that an answer without delay is in time. If one comes too late,
// the worker returns the units and asks again at once, until it gets units of the next window. They may deny others
// meanwhile: the exact limiter would, too, because all these requests came before the window's end.
func (v *View) ValidNs(spendBy int64) int64 {
	now, slack := v.State.NowNs, SlackNs(v.Windows)
	if spendBy > now { // which is no later than the first window's end
		return spendBy - now - slack
	}
	left := max(v.FirstEndNs()-now-slack, 1)
	return min(shortLease, quota.Shortest(v.Windows)/soonShare, left)
}
