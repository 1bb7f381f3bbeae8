package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Debt. Units are granted only if they are left. But other units have been used already, or an operator has them
// counted: these count whatever is left. A window that has counted more than its limit owes the rest:
//
//	what counts                     by            in a window           in a bucket, until it lacks
//	what held units have cost       charge        all; see owed         what it gains in 366 days, or two bursts if more
//	what a proxy or a caller says   CountClaimed  at most one limit     two bursts
//	an operator's inc and set       Add           all                   any number
//
// A bound is there because a wrong number must not lock a key for long. A claim locks it for no longer than using up
// the limit does. A charge is the true cost of an answer, so it may lock the key for the longest period of a policy.
//
// How a debt ends depends on the window:
//
//	bucket         It gains tokens until it lacks none.
//	fixed window   If its definition holds units, the quota service sets limit.Window.Pays: each period pays one
//	               limit, and the rest goes on into the next. owed bounds that rest. Without Pays, it ends with
//	               its window.
//	counter, log   They forget a debt as they forget all units.
//
// chargeHeld, in hold.go, charges for a worker that has fallen silent.

// owed is what a fixed window with Pays counts as once it has ended: at most what it pays within the longest
// period of a policy, or two limits if that is more. Roll stores that when the window has ended, and not before:
// while the window is open, requests with larger limits may use more of it. WaitNs, StandingOf and ExpiryNs look
// beyond the end of an open window. So they reckon with owed, too, but store nothing.
func (s *State) owed(i int) *limit.Usage {
	w, u := &s.Windows[i], &s.Usages[i]
	most := uint64(w.Pays) * uint64(min(max(limit.MaxPeriodNs/w.PeriodNs, 2), saturated))
	if w.Pays == 0 || uint64(u.Used) <= most {
		return u
	}
	owed := *u
	owed.Used = uint32(most)
	return &owed
}

// hasEnded reports whether a fixed window that has counted something ends at now or before.
func (s *State) hasEnded(i int, now int64) bool {
	if end := s.Usages[i].EndNs; end != 0 {
		return end <= now
	}
	return s.Windows[i].End(s.NowNs) <= now
}

// charge counts in one window what held units have cost.
func (s *State) charge(i int, units uint32) {
	if w := &s.Windows[i]; w.Algorithm == limit.TokenBucket {
		most := max(gained(w, limit.MaxPeriodNs), limit.AddSaturating(w.Burst, w.Burst))
		units = s.boundLack(i, units, uint64(most))
	}
	s.addUnleased(i, units)
}

// CountClaimed counts in all windows units for which there is nothing but the word of a proxy or a caller.
func (s *State) CountClaimed(units uint32) {
	for i := range s.Windows {
		w, n := &s.Windows[i], units
		if !w.Unlimited {
			n = min(n, w.Max())
		}
		if w.Algorithm == limit.TokenBucket {
			n = s.boundLack(i, n, 2*uint64(w.Burst))
		}
		s.addUnleased(i, n)
	}
}

// boundLack returns how many of the units a bucket may count so that it lacks at most so many tokens of a full one.
func (s *State) boundLack(i int, units uint32, most uint64) uint32 {
	lacks := uint64(s.Windows[i].Count(&s.Usages[i], s.bucketAsOfNs[i]))
	return uint32(min(uint64(units), most-min(lacks, most)))
}

// addUnleased counts units in one window that count as spent at once and are never refunded.
func (s *State) addUnleased(i int, units uint32) {
	s.addIn(i, units, &Counted{AtNs: s.NowNs, EndNs: s.NowNs})
}

// chargedNs is how much longer a window may count if held units are charged. A fixed window with Pays and a bucket
// take once more for each limit of them, but no longer than for their longest debt: see charge and owed.
//
// For example, 250 units are held. A window of 1 h with Pays 100 takes 3 h, because 3 periods pay 100, 100 and 50.
// Without Pays it takes 1 h.
func chargedNs(w *limit.Window, held uint32) int64 {
	if w.Algorithm == limit.Block {
		return 0
	}
	once := max(forgottenNs(w), 1)
	most, longest := w.Pays, max(limit.MaxPeriodNs/once, 2)+1
	if w.Algorithm == limit.TokenBucket { // once is two bursts
		most, longest = w.Burst, limit.MaxPeriodNs/once+1
	}
	if most == 0 || held <= most {
		return once
	}
	return once * min(int64((held-1)/most)+1, longest)
}
