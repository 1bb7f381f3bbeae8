package warnings

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// warnInexact warns of windows that admit more than their limit, or never end.
func (c *collector) warnInexact(v policy.Place, w policy.Limit) {
	if w.Algorithm == limit.SlidingWindowCounter && w.Most() == 1 {
		c.warn(v, "a sliding_window_counter of 1 lets two requests through across a boundary, "+
			"one late in a window and one early in the next: use sliding_window_log, which is exact")
	}
	if w.Elastic {
		c.warn(v, "elastic is deprecated: a client that never pauses for "+policy.FormatDuration(w.PeriodNs)+
			" gets no new window; leave it out, or use sliding_window_log")
	}
}

// warnTooDear warns of requests that never fit a limit. An override may have room for them.
func (c *collector) warnTooDear(v policy.Place, r *policy.Rule) {
	if len(r.Overrides) > 0 {
		return
	}
	least := r.LeastCost()
	for i, w := range r.Limits {
		at, room := v.Field("limits").Item(i), w.Max()
		if w.Requested != nil {
			room = w.Most()
		}
		each := func(cost uint32) string {
			return ": each costs at least " + strconv.FormatUint(uint64(cost), 10) + ", and " +
				strconv.FormatUint(uint64(room), 10) + " is the most that fits"
		}
		switch {
		case room == 0: // see warnShut
			continue
		case least > room:
			c.warn(at, "denies every request"+each(least))
			continue
		}
		for j := range r.Costs {
			if cost := r.Costs[j].Cost.Least(); cost > room {
				c.warnOf(v.Field("cost").Item(j), at, otherPlace+" denies all that match"+each(cost))
			}
		}
	}
}

// warnShut warns of a limit of 0 that denies everything: beside a match, an exempt, an override or a
// share of keys it is meant to deny.
func (c *collector) warnShut(v policy.Place, r *policy.Rule) {
	meant := !r.Match.IsEmpty() || len(r.Exempt)+len(c.exempt)+len(r.Overrides) > 0 || r.EnforcePercent < 100
	if meant || r.Mode != policy.ModeEnforce {
		return
	}
	at := slices.IndexFunc(r.Limits, isShut)
	if at < 0 {
		return
	}
	what := "every request"
	if names := omissible(r.Key); r.MissingKey == policy.MissingSkip && len(names) > 0 {
		what += " with " + strings.Join(names, ", ")
	}
	c.warn(v.Field("limits").Item(at), "0 denies "+what+": "+
		"give the rule a match for those that it should deny, or a limit above 0")
}

// warnBlock warns of a block that nothing begins.
func (c *collector) warnBlock(v policy.Place, r *policy.Rule) {
	if r.Block != nil && len(r.Limits) == 0 {
		c.warn(v.Field("block"), "blocks no key, because the rule has no limits that could deny one")
	}
}

func isShut(l policy.Limit) bool { return l.Requested == nil && l.Limit == 0 }

// warnIdle warns of windows that never deny, because another window of the rule always does
// before. It does not warn of a rule whose counter goes beyond limits: by what answers cost, by
// requests that are denied and counted, or by other rules that share the counter.
func (c *collector) warnIdle(v policy.Place, r *policy.Rule) {
	beyond := r.CountDenied || r.ChargesBeyondHold() || c.sharing[r.Counter] > 1
	if beyond || slices.ContainsFunc(r.Limits, isShut) {
		return
	}
	for i := range r.Limits {
		by := stricter(r.Limits, i)
		isReached := func(o policy.Override) bool {
			return len(o.Limits) > 0 && !o.Limits[i].Unlimited && stricter(o.Limits, i) < 0
		}
		if by < 0 || slices.ContainsFunc(r.Overrides, isReached) {
			continue
		}
		of, message := &r.Limits[i], "can never be reached: "+otherPlace+" is stricter at any time"
		if of.Algorithm != limit.TokenBucket {
			most := strconv.FormatFloat(admitsInPeriod(&r.Limits[by].Window, &of.Window), 'f', -1, 64)
			message = "can never be reached: " + otherPlace + " admits at most " + most + " in " +
				policy.FormatDuration(of.PeriodNs)
		}
		c.warnOf(v.Item(i), v.Item(by), message+": lower it, or remove one of the two")
	}
}

// stricter is the index of a window that always denies before the one at i would, -1 if there
// is none. Of two that say the same it is the first.
func stricter(limits []policy.Limit, i int) int {
	for j := range limits {
		if j != i && implies(&limits[j], &limits[i]) && (j < i || !implies(&limits[i], &limits[j])) {
			return j
		}
	}
	return -1
}

// implies reports whether what a admits never reaches b. It is false where that is not
// certain: of limits that requests say, of months, and of windows that hits prolong.
func implies(a, b *policy.Limit) bool {
	for _, l := range []*policy.Limit{a, b} {
		isOdd := l.Algorithm == limit.Calendar || l.Algorithm == limit.Concurrency
		if isOdd || l.Requested != nil || l.Unlimited || l.Max() == 0 {
			return false
		}
	}
	switch {
	case b.Elastic:
		return false
	case b.Algorithm == limit.TokenBucket:
		fills := float64(b.Limit) / float64(b.PeriodNs)
		return admits(&a.Window, 1) <= float64(b.Burst) && float64(a.Limit)/float64(a.PeriodNs) <= fills
	case b.Algorithm == limit.SlidingWindowCounter: // it counts the last period's requests as if they were evenly spread
		return admitsInPeriod(&a.Window, &b.Window)+admits(&a.Window, 1) <= float64(b.Limit)
	}
	return admitsInPeriod(&a.Window, &b.Window) <= float64(b.Max())
}

// admitsInPeriod is the most that a admits in one period of b.
func admitsInPeriod(a, b *limit.Window) float64 {
	short, long := min(a.PeriodNs, b.PeriodNs), max(a.PeriodNs, b.PeriodNs)
	if onGrid(a) && onGrid(b) && long%short == 0 && (a.OffsetNs-b.OffsetNs)%short == 0 {
		return float64(a.Limit) * max(1, float64(b.PeriodNs/a.PeriodNs))
	}
	return admits(a, b.PeriodNs)
}

// admits is the most that a admits in any ns nanoseconds.
func admits(a *limit.Window, ns int64) float64 {
	periods := math.Ceil(float64(ns) / float64(a.PeriodNs))
	switch a.Algorithm {
	case limit.TokenBucket:
		return float64(a.Burst) + math.Ceil(float64(a.Limit)*float64(ns)/float64(a.PeriodNs))
	case limit.SlidingWindowLog:
		return float64(a.Max()) * periods
	default: // one more of its windows may have begun before
		return float64(a.Limit) * (periods + 1)
	}
}

// onGrid reports whether all keys' windows begin at the same times.
func onGrid(w *limit.Window) bool {
	return w.Algorithm == limit.FixedWindow && w.Jitter == 0 || w.Algorithm == limit.SlidingWindowCounter
}
