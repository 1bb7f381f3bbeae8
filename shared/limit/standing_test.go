package limit

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// What Count and Reset find is all that a standing has to say.
func TestStanding(t *testing.T) {
	const second = 1_000_000_000
	dice := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		w := Window{
			Algorithm: Algorithm(1 + dice.IntN(5)), Limit: 1 + dice.Uint32N(50),
			PeriodNs: MinPeriodNs + dice.Int64N(20*second), Burst: 1 + dice.Uint32N(60), Units: 64,
		}
		if w.IsFixed() && dice.IntN(2) == 0 {
			w.Pays = 1 + dice.Uint32N(3)
		}
		var u Usage
		now, last := 1000*second+dice.Int64N(second), int64(0)
		for range dice.IntN(12) {
			if last > 0 {
				w.Roll(&u, last, now)
			}
			w.Add(&u, now, dice.Uint32N(4))
			last = now
			now += dice.Int64N(w.PeriodNs)
		}
		if last > 0 {
			w.Roll(&u, last, now)
		}
		used, reset := w.Count(&u, now), w.Reset(&u, now)
		s := w.Standing(now, used, reset-now, nil)
		require.Equal(t, used, w.Count(&s, now), "%+v: %+v", w, u)
		if used > 0 {
			require.Equal(t, reset, w.Reset(&s, now), "%+v: %+v", w, u)
		}
	}
}
