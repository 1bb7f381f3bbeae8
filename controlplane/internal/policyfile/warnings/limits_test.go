package warnings

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What is said never to be reached is not, whatever hits the other window lets pass.
func TestWindowsThatAreNeverReached(t *testing.T) {
	const ms = 1_000_000
	random := rand.New(rand.NewPCG(46, 6))
	algorithms := []limit.Algorithm{
		limit.FixedWindow, limit.FixedWindowPerKey, limit.SlidingWindowLog, limit.SlidingWindowCounter, limit.TokenBucket,
	}
	window := func() policy.Limit {
		w := limit.Window{
			Algorithm: algorithms[random.IntN(len(algorithms))], Limit: 1 + random.Uint32N(9),
			PeriodNs: (1 + random.Int64N(8)) * ms,
		}
		switch w.Algorithm {
		case limit.TokenBucket:
			w.Burst = 1 + random.Uint32N(20)
		case limit.SlidingWindowLog:
			w.Units = uint16(w.Limit)
		case limit.FixedWindow:
			w.OffsetNs = random.Int64N(w.PeriodNs/ms) * ms
		default:
		}
		return policy.Limit{Window: w}
	}
	said := 0
	for range 30_000 {
		a, b := window(), window()
		if !implies(&a, &b) {
			continue
		}
		said++
		now, before := int64(1e12), int64(1e12)
		var ofA, ofB limit.Usage
		for range 200 {
			now += []int64{0, 0, 1, random.Int64N(ms), random.Int64N(b.PeriodNs)}[random.IntN(5)]
			a.Roll(&ofA, before, now)
			b.Roll(&ofB, before, now)
			if a.Check(&ofA, now, 1) == now {
				require.Equal(t, now, b.Check(&ofB, now, 1), "%+v\n%+v", a.Window, b.Window)
				a.Add(&ofA, now, 1)
				b.Add(&ofB, now, 1)
			}
			before = now
		}
	}
	require.Greater(t, said, 5000)
}
