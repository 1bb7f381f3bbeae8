package engine

import (
	"math/big"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// admission is one window of one key.
type admission struct {
	rule, key string
	window    int
}

// admitted are the hits that one window of one key has let through, and what an
// observer without any table thinks of them.
type admitted struct {
	hits  []admittedHit
	start int64 // of the window that is open
	open  bool
	used  uint64 // in it
}

type admittedHit struct {
	at    int64
	cost  uint32
	limit uint32 // when it came: requests may say it
}

func (a *admitted) add(w limit.Window, now int64, cost uint32) {
	a.hits = append(a.hits, admittedHit{now, cost, w.Limit})
	start := now
	switch {
	case w.Algorithm == limit.FixedWindow:
		start = w.End(now) - w.PeriodNs
	case a.open && now < a.start+w.PeriodNs:
		start = a.start
	}
	if !a.open || start != a.start {
		a.open, a.start, a.used = true, start, 0
	}
	a.used += uint64(cost)
}

// within reports whether the newest hit was one that the window may let through.
func (a *admitted) within(w limit.Window) bool {
	last := a.hits[len(a.hits)-1].at
	switch w.Algorithm {
	case limit.SlidingWindowLog: // any interval of a period
		return a.since(last-w.PeriodNs+1) <= uint64(w.Limit)
	case limit.SlidingWindowCounter: // its bound for a whole period
		most := uint64(0)
		for _, h := range a.hits {
			most = max(most, uint64(h.limit))
		}
		return a.since(last-w.PeriodNs+1) <= 2*most+1
	case limit.TokenBucket: // any interval: the burst and what comes in it
		for _, first := range a.hits {
			most := new(big.Int).Mul(big.NewInt(last-first.at), big.NewInt(int64(w.Limit)))
			most.Add(most, new(big.Int).Mul(big.NewInt(int64(w.Burst)), big.NewInt(w.PeriodNs)))
			took := new(big.Int).Mul(new(big.Int).SetUint64(a.since(first.at)), big.NewInt(w.PeriodNs))
			if took.Cmp(most) > 0 {
				return false
			}
		}
		return true
	default: // a window as a whole
		return a.used <= uint64(w.Limit)
	}
}

func (a *admitted) since(at int64) (units uint64) {
	for _, h := range a.hits {
		if h.at >= at {
			units += uint64(h.cost)
		}
	}
	return units
}
