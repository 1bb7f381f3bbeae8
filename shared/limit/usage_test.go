package limit

import (
	"cmp"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefundPerKey(t *testing.T) {
	w := perKey(5, 10*ms)
	open := func(used uint32, endMs int64) Usage { return Usage{Used: used, EndNs: endMs * ms} }
	slides := func(used uint32, endMs int64) Usage { return Usage{Used: used, EndNs: endMs * ms, Slides: true} }
	for name, c := range map[string]struct {
		u, after Usage
		now      int64
		cost     uint32
		opened   bool
		want     Usage
		taken    bool
	}{
		"another window is open":                 {open(2, 55), open(2, 50), 46, 1, false, open(2, 55), false},
		"was set lower than the hit":             {open(1, 50), open(3, 50), 41, 2, false, open(1, 50), false},
		"opened, was set lower than the hit":     {open(1, 50), open(3, 50), 41, 2, true, open(1, 50), false},
		"has closed since: nothing to do":        {Usage{}, open(1, 50), 41, 1, false, Usage{}, false},
		"a cost above what is left does nothing": {slides(1, 56), slides(3, 50), 41, 3, false, slides(1, 56), false},
	} {
		got, taken := refunded(w, c.u, c.after, 40*ms, c.now*ms, c.cost, c.opened)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.taken, taken, name)
	}
}

// A debt goes on into the next window, and with it a hit that was refunded too late. Nobody knows
// how much of the hit is paid by then, so a late refund changes nothing. That is never looser than
// if the hit had never been, and stricter by no more than the hit.
func TestARefundAfterTheEndLeavesTheDebt(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	debts := 0
	for range 20000 {
		w := []Window{
			aligned(5, second, 0), perKey(5, second), NewCalendar(1, 0, 0),
			{Algorithm: FixedWindow, PeriodNs: second, Jitter: 50, OffsetNs: dice.Int64N(second / 2)},
		}[dice.IntN(4)]
		w.Pays = 1 + dice.Uint32N(5)
		const at = 1000 * second
		hit, charged := 1+dice.Uint32N(5), dice.Uint32N(20)
		opened := dice.IntN(2) == 0
		without := Usage{}
		if !opened {
			without = w.Set(at, 1)
		}
		with := added(w, without, at, hit)
		after := with
		with, without = added(w, with, at, charged), added(w, without, at, charged)
		now := w.endOf(&with, at) + dice.Int64N(3*w.PeriodNs)
		with, without = rolled(w, with, at, now), rolled(w, without, at, now)
		got, _ := refunded(w, with, after, at, now, hit, opened)
		require.Equal(t, with, got, "%+v", w)
		require.GreaterOrEqual(t, got.Used, without.Used, "%+v", w)
		require.LessOrEqual(t, got.Used, without.Used+hit, "%+v", w)
		if got.Used > without.Used {
			debts++
		}
	}
	require.Greater(t, debts, 1000)
}

func TestFractionUsed(t *testing.T) {
	for _, c := range []struct {
		l, m Fraction
		less bool
	}{
		{Fraction{1, 10}, Fraction{2, 10}, true},
		{Fraction{2, 10}, Fraction{2, 10}, false},
		{Fraction{1, 5}, Fraction{2, 10}, false},
		{Fraction{1, 6}, Fraction{2, 10}, true},
		{Fraction{9, 10}, Fraction{1, 1}, true},
		{Fraction{math.MaxUint32, math.MaxUint32}, Fraction{math.MaxUint32 - 1, math.MaxUint32}, false},
		{Fraction{math.MaxUint32 - 1, math.MaxUint32}, Fraction{math.MaxUint32, math.MaxUint32}, true},
	} {
		require.Equal(t, c.less, c.l.Less(c.m), "%v %v", c.l, c.m)
	}
	w := aligned(0, ms, 0)
	require.Equal(t, Fraction{Used: 3, Limit: 1}, w.FractionUsed(&Usage{Used: 3}, 0), "a limit of 0 divides nothing by it")
}

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
	day    = 86_400 * second
)

func aligned(units uint32, period, offset int64) Window {
	return Window{Algorithm: FixedWindow, Limit: units, PeriodNs: period, OffsetNs: offset}
}

func perKey(units uint32, period int64) Window {
	return Window{Algorithm: FixedWindowPerKey, Limit: units, PeriodNs: period}
}

func TestCompareOrdersIdentities(t *testing.T) {
	ordered := []Window{
		aligned(9, ms, 0), aligned(1, ms, 1), perKey(5, ms),
		aligned(0, second, 0), perKey(0, second), aligned(3, day, 4*3600*second),
	}
	for i, w := range ordered {
		for j, v := range ordered {
			require.Equal(t, cmp.Compare(i, j), w.Compare(v), "%d %d", i, j)
		}
	}
	require.Zero(t, aligned(1, ms, 0).Compare(aligned(2, ms, 0)), "the limit is no part of the identity")
}

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

// Variants of Window's methods that return a new Usage instead of changing one.

func rolled(w Window, u Usage, last, now int64) Usage {
	w.Roll(&u, last, now)
	return u
}

func added(w Window, u Usage, now int64, cost uint32) Usage {
	w.Add(&u, now, cost)
	return u
}

func refunded(w Window, u, after Usage, at, now int64, cost uint32, opened bool) (Usage, bool) {
	taken := w.Refund(&u, &after, at, now, cost, opened)
	return u, taken
}

func shifted(w Window, u Usage, delta int64) Usage {
	w.Shift(&u, delta)
	return u
}
