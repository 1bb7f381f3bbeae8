package balance

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// What a key can give: units are unused in a window that has not counted them, and left if no worker holds them either.
// Workers may hold units of the key by a policy of theirs, even if the definition itself holds none. For example, 60 of
// 100 a minute and 990 of 1000 an hour are used, and workers hold 4:
//
//	who asks                                   by          finds
//	a hit: how many units may it take?         OfferNow    6 are left: the hour has 10 unused, of which 4 are held
//	a hit: and to be spent until a lease ends  OfferLease  6, with some ahead of need. A bucket has fewer
//	a denial: why does a cost of 8 not fit?    Denial      8 are unused, so only what is held is in the way
//	a call: how much of this window is there?  UnusedIn    40 in the minute, 10 in the hour
//	a proxy: how does the key stand?           Standing    60 and 990 are used. What is held counts in neither

// UnusedIn returns how many units are unused in one window.
func (v *View) UnusedIn(i int) uint32 { return v.window(i).unused(v.record.NowNs) }

// Left returns how many units are left in all windows, if they may be spent until spendBy.
func (v *View) Left(spendBy int64) uint32 {
	unused := uint32(saturated)
	for i := range v.Windows {
		unused = min(unused, v.window(i).unused(spendBy))
	}
	return minus(unused, v.Held())
}

// Offer is what a cost can be granted.
type Offer struct {
	Verdict   Verdict
	Units     uint32 // if it Passes: what waits, as far as it is left, and of OfferLease what is granted ahead
	SpendByNs int64  // if it Passes: the end of their lease; NowNs if they are not leased
	NeedsAge  bool   // if it Passes: it was decided by what is held, which a store that is starting does not know
}

// Verdict says whether a cost passes.
type Verdict uint8

// The verdicts.
const (
	Passes   Verdict = iota + 1
	TooFew           // too few units are left for it, or the key is blocked: see View.Denial
	NotYet           // of OfferLease: a lease would end within SlackNs with its window. Decide again at FirstEndNs
	Starting         // of OfferNow: only the store's start is in the way. See StartingForNs
)

// OfferNow finds what can be spent at once, or held, if so many units wait, of which the first request costs so many.
// A cost of 0 passes unless the key is blocked.
func (v *View) OfferNow(cost, waiting uint32) Offer {
	now, holds := v.record.NowNs, v.HoldLimit != nil
	left := v.Left(now)
	if holds && !v.HoldLimit.Unlimited {
		left = min(left, minus(v.HoldLimit.Limit, v.Held()))
	}
	switch {
	case cost > left || v.IsBlocked():
		return Offer{Verdict: TooFew}
	case cost == 0:
		return Offer{Verdict: Passes, SpendByNs: now}
	case holds && v.StartingForNs > 0:
		return Offer{Verdict: Starting}
	}
	return Offer{Verdict: Passes, Units: min(left, max(waiting, cost)), SpendByNs: now, NeedsAge: holds}
}

// OfferLease finds what a part can be granted: the units that wait, as far as they are left, and ahead of need at most
// a quarter of the rest. If the cost does not fit with a lease and fits without one, the units are granted without a
// lease. It is for a definition that holds no units.
//
// For example, 3 units of a limit of 1000 a minute are asked for, and 600 ahead, 40 s before the minute ends:
//
//	left  granted                   may be spent
//	400   3 + 397/4 = 102           for 10 s, less SlackNs
//	200   3 + 197/4 = 52            for 100 ms, less SlackNs, because less than a quarter is left
//	15    3, because 15 are few     for 100 ms, less SlackNs
//	2     2, or none if the first request costs 3
func (v *View) OfferLease(lease uint32, p *quota.Part) Offer {
	now, firstEndNs := v.record.NowNs, v.FirstEndNs()
	endNs := v.leaseEndNs(lease, firstEndNs)
	if endNs > now && firstEndNs-now <= SlackNs(v.Windows) {
		return Offer{Verdict: NotYet}
	}
	left := v.Left(endNs)
	if left < p.Cost && endNs > now {
		endNs = now
		left = v.Left(now)
	}
	if left < p.Cost || v.IsBlocked() {
		return Offer{Verdict: TooFew}
	}
	d := Offer{Verdict: Passes, Units: min(left, max(p.Waiting, p.Cost)), SpendByNs: endNs}
	if endNs == now || left < leastAhead {
		return d
	}
	ahead := min(v.aheadUntil(endNs, p.Ahead), (left-d.Units)/leftShare)
	if lease != quota.LeaseAuto {
		ahead = min(ahead, lease)
	}
	d.Units += ahead
	return d
}

// Denial is why a cost is denied. Zero = it is not.
type Denial struct {
	Denied   bool
	HeldBack bool  // only units that are held are in the way; false if the definition holds none
	WaitNs   int64 // until the cost fits, if nobody else asks; limit.Never
}

// Denial says why a cost that is denied does not fit, by what the record counts now.
func (v *View) Denial(cost uint32) Denial {
	holds := v.HoldLimit != nil
	if holds && !v.HoldLimit.Unlimited && cost > v.HoldLimit.Limit {
		return Denial{Denied: true, WaitNs: limit.Never}
	}
	waitNs := v.WaitNs(cost)
	if waitNs == 0 { // only what is held is in the way, maybe by workers of another policy
		return Denial{Denied: true, HeldBack: holds, WaitNs: limit.HeldRetryNs}
	}
	return Denial{Denied: true, WaitNs: waitNs}
}

// WaitNs returns how long a cost must wait for the windows if nobody else asks; limit.Never. It is 0 if so
// many units are unused in all of them: then only what is held can be in the way.
func (v *View) WaitNs(cost uint32) (wait int64) {
	for i := range v.Windows {
		ns := v.window(i).waitNs(cost)
		if ns == limit.Never {
			return limit.Never
		}
		wait = max(wait, ns)
	}
	return wait
}

// How long leases last, and how much is granted ahead, if few units are left. The times for when enough are left are
// in times.go of package quota: a proxy needs these, too.
const (
	// leastAhead is how many units must be left for some to be granted ahead.
	leastAhead = 16
	// leftShare makes a quarter: at most that part of what is left is granted ahead.
	leftShare = 4
	// scarceShare makes a quarter, too: if less than that part of a limit is unused, leases are short.
	scarceShare = 4
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

// leaseEndNs is when a lease that began now would end: at firstEndNs, or before. It is now if nothing is leased.
func (v *View) leaseEndNs(lease uint32, firstEndNs int64) int64 {
	now := v.record.NowNs
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
		case !w.Unlimited && uint64(v.UnusedIn(i))*scarceShare < uint64(w.Limit):
			end = min(end, now+shortLease)
		}
	}
	return end
}

// aheadUntil is what a proxy expects to need until a lease ends. The proxy says what it needs in quota.HorizonNs: of
// a lease that ends much sooner, because a window does, it needs less.
func (v *View) aheadUntil(endNs int64, ahead uint32) uint32 {
	rest, horizon := endNs-v.record.NowNs, quota.HorizonNs(v.Windows)
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
	now, slack := v.record.NowNs, SlackNs(v.Windows)
	if spendBy > now { // which is no later than the first window's end
		return spendBy - now - slack
	}
	left := max(v.FirstEndNs()-now-slack, 1)
	return min(shortLease, quota.Shortest(v.Windows)/soonShare, left)
}
