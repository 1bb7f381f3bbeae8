package limit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeldOfAnotherLength: what is held goes on where the hold's length changes, until
// as long after the eighth in which it was last known to run as the new length says, and
// its ends are found.
func TestHeldOfAnotherLength(t *testing.T) {
	long, short := Window{Algorithm: Concurrency, PeriodNs: 600e9}, Window{Algorithm: Concurrency, PeriodNs: 10e9}
	h := Holds{Eighth: 100}
	h.Add(95, 2)
	h.Add(99, 1)
	h.Add(100, 3)
	h.Scale(&long, &short)
	require.EqualValues(t, 6059, h.Eighth, "the last of the eighth 100")
	require.EqualValues(t, 6, h.Total())
	require.EqualValues(t, 6059, short.EighthBy(101*long.EighthNs()), "as a hold has it now")
	h.Remove(6059, 1)
	h.Remove(short.EighthBy(96*long.EighthNs()), 2)
	require.EqualValues(t, 3, h.Total())
	eighth, units, ok := h.Lapse(6068)
	require.Equal(t, []any{uint32(6051), uint32(1), true}, []any{eighth, units, ok}, "of the eighth 99")
	eighth, units, ok = h.Lapse(6068)
	require.Equal(t, []any{uint32(6059), uint32(2), true}, []any{eighth, units, ok})

	h = Holds{Eighth: 6059}
	for n := range uint32(9) {
		h.Add(6051+n, 1+n)
	}
	h.Scale(&short, &long)
	require.EqualValues(t, 100, h.Eighth)
	require.EqualValues(t, 45, h.Total())
	h.Remove(long.EighthBy(6060*short.EighthNs()), 9)
	h.Remove(long.EighthBy(6052*short.EighthNs()), 1)
	require.EqualValues(t, 35, h.Units[100%9])
	require.EqualValues(t, 35, h.Total())
	h.Remove(97, 5)
	require.EqualValues(t, 30, h.Total(), "by a hold that has not seen a change between")
}

// TestJoinLapsesNothing: units that are too old for the holds that they join are held in the oldest eighth.
func TestJoinLapsesNothing(t *testing.T) {
	h, old := Holds{Eighth: 11}, Holds{Eighth: 8}
	old.Add(2, 5)
	old.Add(8, 1)
	h.Join(&old)
	_, _, ok := h.Lapse(11)
	require.False(t, ok)
	eighth, units, ok := h.Lapse(12)
	require.Equal(t, []any{uint32(3), uint32(5), true}, []any{eighth, units, ok})
	require.EqualValues(t, 1, h.Total())
}

// TestDebtIsPaid: a window begins with what the one before it has used over its limit,
// and a hit waits until enough is paid.
func TestDebtIsPaid(t *testing.T) {
	const second = int64(1e9)
	calendar := NewCalendar(1, 0, 0)
	for name, w := range map[string]Window{
		"aligned":  {Algorithm: FixedWindow, PeriodNs: 10 * second},
		"jittered": {Algorithm: FixedWindow, PeriodNs: 10 * second, Jitter: 50, OffsetNs: 3 * second},
		"per key":  {Algorithm: FixedWindowPerKey, PeriodNs: 10 * second},
		"months":   calendar,
	} {
		w.Limit, w.Pays = 100, 100
		start := 1000 * second
		var u Usage
		w.Add(&u, start, 350)
		end := w.endOf(&u, start)
		want := end // with room for one more: 350 → 250 → 150 → 50
		for range 2 {
			want += w.PeriodNs
			if w.Algorithm == Calendar {
				want = w.End(w.End(end))
			}
		}
		require.Equal(t, want, w.Check(&u, start, 1), name)
		require.Equal(t, want, w.paid(&u, start, 99), name)

		at, before := start, u
		for _, left := range []uint32{250, 150, 50, 0} {
			next := w.endOf(&u, at)
			w.Roll(&u, at, next-1)
			w.Roll(&u, next-1, next)
			require.Equal(t, left, u.Used, name)
			at = next
			once := before
			w.Roll(&once, start, at)
			require.Equal(t, u, once, name+": in one step or in many")
		}
		require.Equal(t, at, w.Expiry(&before, start), name)
		require.Equal(t, at, w.Reset(&before, start), name)
	}
	w := Window{Algorithm: FixedWindow, PeriodNs: second, Limit: 1, Pays: 1}
	u := Usage{Used: 1<<32 - 1}
	require.Equal(t, second+MaxFillNs, w.Check(&u, 0, 1), "as far as waits go")
	w.Roll(&u, 0, 1<<62)
	require.Zero(t, u)
}

// TestChargesMayBeOthers: so a key's window may have begun with the last of them.
func TestChargesMayBeOthers(t *testing.T) {
	w := perKey(5, 20)
	var u Usage
	w.ChargeByRule(&u, 0, 25, 1)
	w.ChargeByRule(&u, 25, 40, 1)
	require.Equal(t, Usage{Used: 2, EndNs: 60}, u)
}
