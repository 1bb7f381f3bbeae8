package state

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// runVariant is a configuration, in which one key may have limits of its own, or each
// request says the limits of its key.
type runVariant struct {
	Definition
	override []limit.Window // key 0's
	rule     []limit.Window // for Key.OfRule
	said     bool
}

// define returns a configuration with a random shape and random limits, which most often
// holds where configurations do. A log remembers as many units as the largest limit of any
// key.
func (r *run) define(counter string, capacity uint32) runVariant {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: []int64{8, 16, 24, 40}[r.random.IntN(4)] * tick}
	if len(r.variant) == 0 || hold.PeriodNs < r.hold.PeriodNs {
		r.hold = hold
	}
	some := func() uint32 { return 1 + r.random.Uint32N(mostLimit) }
	if r.inFlight && (len(r.variant) == 0 || r.random.IntN(3) > 0) {
		override := hold
		hold.Limit, override.Limit = some(), some()
		windows := []limit.Window{hold}
		def := definition(counter, capacity, windows...)
		return runVariant{Definition: def, override: []limit.Window{override}, rule: windows}
	}
	windows := slices.Clone(floorShapes[r.random.IntN(len(floorShapes))])
	slices.SortFunc(windows, limit.Window.Compare)
	override := slices.Clone(windows)
	said := !r.holds && r.random.IntN(3) == 0
	for _, list := range [][]limit.Window{windows, override} {
		for i := range list {
			w := &list[i]
			w.Limit = some()
			switch w.Algorithm {
			case limit.TokenBucket:
				w.Burst = some()
				said = false // policies refuse it
			case limit.FixedWindow, limit.FixedWindowPerKey:
				if r.debt {
					w.Pays = w.Limit
				}
			default:
			}
		}
	}
	if r.random.IntN(3) > 0 {
		copy(override, windows)
	}
	for i := range windows {
		if windows[i].Algorithm == limit.SlidingWindowLog {
			windows[i].Units = uint16(max(windows[i].Limit, override[i].Limit))
			if said {
				windows[i].Units = mostLimit
			}
			override[i].Units = windows[i].Units
		}
	}
	rule := Overridden(windows, []Override{{"key 0", override}})
	for i := range rule {
		rule[i].Pays = min(rule[i].Pays, override[i].Pays)
	}
	if r.holds && (!r.changes || r.random.IntN(4) > 0) { // else it settles nothing
		hold.Unlimited = true
		windows = append(windows, hold)
		override = append(override, hold)
		rule = append(rule, hold)
	}
	return runVariant{definition(counter, capacity, windows...), override, rule, said}
}

// holds reports whether a hit of the configuration holds until its answer.
func (v *runVariant) holds() bool {
	return v.Windows[len(v.Windows)-1].Algorithm == limit.Concurrency
}

// limitsOf returns the windows with a key's limits.
func (v *runVariant) limitsOf(key int) []limit.Window {
	if key == 0 {
		return v.override
	}
	return v.Windows
}

// keyOf is a worker's key with the limits that its configuration gives it.
func (r *run) keyOf(w *runWorker) Key {
	v := &r.variant[w.variant]
	limits := v.limitsOf(w.keyIndex)
	if v.said {
		limits = slices.Clone(limits)
		for i := range limits {
			limits[i].Limit = (w.said + uint32(i)) % (mostLimit + 1)
			limits[i].Units = v.Windows[i].Units
		}
	}
	return Key{Bytes: w.key, Limits: Limits{Windows: shifted(limits, w.key), OfRule: v.rule}}
}

// floorShapes are the mixes of windows for the runs, without limits: each
// algorithm alone, layered with itself, and layered with others.
var floorShapes = [][]limit.Window{
	{aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 13*tick)},
	{perKey(0, 20*tick)},
	{perKey(0, 20*tick), perKey(0, 31*tick)},
	{aligned(0, 7*tick, 0), aligned(0, 20*tick, 3*tick)},
	{perKey(0, 13*tick), aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 0), perKey(0, 20*tick)},
	{aligned(0, 11*tick, 0), perKey(0, 20*tick), aligned(0, 43*tick, 5*tick)},
	{elastic(20 * tick)},
	{jittered(20*tick, 100)},
	{jittered(20*tick, 40), perKey(0, 31*tick)},
	{slidingLog(0, 20*tick)},
	{slidingLog(0, 13*tick), slidingLog(0, 31*tick)},
	{slidingCounter(0, 20*tick)},
	{slidingCounter(0, 7*tick), aligned(0, 20*tick, 0)},
	{tokenBucket(0, 0, 20*tick)},
	{tokenBucket(0, 0, 7*tick), tokenBucket(0, 0, 31*tick)},
	{tokenBucket(0, 0, 7*tick), aligned(0, 20*tick, 0)},
	{
		slidingLog(0, 13*tick), slidingCounter(0, 20*tick), tokenBucket(0, 0, 20*tick), jittered(31*tick, 50),
		elastic(7 * tick),
	},
}
