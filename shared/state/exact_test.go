package state

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// exact is the plainest limiter of one window and one key. units and burst are the
// largest limits that the key had in the run. minBurst is its smallest burst: a
// token bucket that is full under one configuration is full under all, also under
// one that admitted no hit of the key, because its workers have seen the bucket
// when they evicted other keys.
type exact struct {
	window                 limit.Window // on the key's own grid
	units, burst, minBurst int64
	pays                   int64 // units of debt that each fixed window takes off; 0 = all
	last                   int64
	open                   bool

	start, used, prev int64   // of the fixed window, or of the sliding counter's period
	level             int64   // of the token bucket, in tokens · ns
	log               []int64 // when each unit was counted
}

// count counts a hit and reports whether at most units are in its window now.
func (x *exact) count(now, cost, units int64) bool {
	if x.open && now < x.last {
		return false // time never goes back for a key
	}
	switch x.window.Algorithm {
	case limit.SlidingWindowLog:
		x.log = slices.DeleteFunc(x.log, func(at int64) bool { return at <= now-x.window.PeriodNs })
		for range cost {
			x.log = append(x.log, now)
		}
		x.used = int64(len(x.log))
	case limit.TokenBucket:
		full := x.burst * x.window.PeriodNs
		x.level += (now - x.last) * x.units
		if !x.open || x.level >= x.minBurst*x.window.PeriodNs {
			x.level = full
		}
		x.level -= cost * x.window.PeriodNs
		x.open, x.last = true, now
		x.used = x.burst - x.level/x.window.PeriodNs
		return x.level >= 0
	default:
		x.countFixed(now, cost)
	}
	x.open, x.last = true, now
	weighted := x.prev * (x.start + x.window.PeriodNs - now) / x.window.PeriodNs
	return weighted+x.used <= units
}

// countFixed counts in a fixed window, or in a period of a sliding counter.
func (x *exact) countFixed(now, cost int64) {
	period, start := x.window.PeriodNs, now
	perKey := x.window.Algorithm == limit.FixedWindowPerKey
	if !perKey {
		start = now - ((now-x.window.OffsetNs)%period+period)%period
	}
	switch {
	case x.open && perKey && now < x.start+period:
		if x.window.Elastic {
			x.start = now
		}
	case x.window.Algorithm == limit.SlidingWindowCounter:
		if start == x.start {
			break
		}
		x.prev = 0
		if x.open && start == x.start+period {
			x.prev = x.used
		}
		x.start, x.used = start, 0
	case !x.open:
		x.start = start
	case start != x.start:
		ended := (now - x.start) / period
		x.used = max(0, x.used-ended*x.pays)
		if x.pays == 0 {
			x.used = 0
		}
		if perKey && x.used > 0 && !x.window.Elastic {
			start = x.start + ended*period
		}
		x.start = start
	}
	x.used += cost
}
