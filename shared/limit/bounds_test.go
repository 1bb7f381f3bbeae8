package limit

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// admitted returns the hits that a window admits in a short random history whose
// clock also steps back, oldest first.
func admitted(r *rand.Rand, w Window) []event {
	var hits []event
	var u Usage
	last, now := int64(0), r.Int64N(60*365*day)
	for range 60 {
		switch r.IntN(12) {
		case 0:
			now -= r.Int64N(w.PeriodNs/2 + 1)
		case 1:
			now = w.End(now) - int64(r.IntN(2))
		case 2, 3:
			now += r.Int64N(w.PeriodNs)
		case 4, 5:
			now += r.Int64N(w.PeriodNs/20 + 1)
		default:
			now += r.Int64N(w.PeriodNs/200 + 1)
		}
		now = max(now, 0)
		at := max(now, last)
		u = rolled(w, u, last, at)
		last = at
		cost := uint32(1)
		if r.IntN(4) == 0 {
			cost = 1 + uint32(r.IntN(int(w.Max())+1))
		}
		pass := w.Check(&u, at, cost)
		if pass != at && pass != Never && r.IntN(2) == 0 {
			at, now = pass, pass // a hit that waits as long as Check says is admitted
			u, last = rolled(w, u, last, at), at
		}
		if w.Check(&u, at, cost) == at {
			u = added(w, u, at, cost)
			hits = append(hits, event{at, cost})
		}
	}
	return hits
}

// TestWhatAnIntervalAdmits: in an interval of length x, a log admits at most its
// limit if x < W, a sliding counter at most limit·(1+x/W)+1 if x ≤ W, and a token
// bucket at most burst + limit·x/W.
func TestWhatAnIntervalAdmits(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 26))
	tight := map[Algorithm]int{}
	for range 15_000 {
		w := Window{
			Algorithm: []Algorithm{SlidingWindowLog, SlidingWindowCounter, TokenBucket}[r.IntN(3)],
			Limit:     uint32(1 + r.IntN(12)), PeriodNs: randomPeriod(r), Units: 12, Burst: uint32(1 + r.IntN(12)),
		}
		hits := admitted(r, w)
		for i := range hits {
			sum := int64(0)
			for _, h := range slices.Backward(hits[:i+1]) {
				sum += int64(h.cost)
				x := hits[i].at - h.at // the shortest interval that holds both
				if w.Algorithm == SlidingWindowLog && x >= w.PeriodNs || w.Algorithm == SlidingWindowCounter && x > w.PeriodNs {
					break
				}
				switch bound := w.maxWithin(x); number(sum).Cmp(bound) {
				case 1:
					t.Fatalf("%+v: %d units within %d ns, from %d on; at most %d", w, sum, x, h.at, bound)
				case 0:
					tight[w.Algorithm]++
				}
			}
		}
	}
	for _, a := range []Algorithm{SlidingWindowLog, TokenBucket} {
		if tight[a] < 1000 {
			t.Errorf("algorithm %d reached its bound only %d times", a, tight[a])
		}
	}
	t.Logf("bounds reached: %v", tight)
}

// maxWithin is how many units fit in an interval of length x.
func (w Window) maxWithin(x int64) *big.Int {
	gained := new(big.Int).Div(times(int64(w.Limit), x), number(w.PeriodNs))
	switch w.Algorithm {
	case SlidingWindowCounter:
		return plus(gained, number(int64(w.Limit)+1))
	case TokenBucket:
		return plus(gained, number(int64(w.Burst)))
	default:
		return number(int64(w.Limit))
	}
}
