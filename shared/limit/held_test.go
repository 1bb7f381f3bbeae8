package limit

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainHolds is what Held is judged by: each unit with its eighth.
type plainHolds map[uint32]uint32

func (p plainHolds) total() (units uint32) {
	for _, n := range p {
		units += n
	}
	return units
}

// TestHeldCountsEachUnitOnce: whatever is held, ended and forgotten in whatever order,
// each unit is held, ended or lapsed, and lapses nine eighths after it was last seen.
func TestHeldCountsEachUnitOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		h, plain := Held{Eighth: random.Uint32()}, plainHolds{}
		now := h.Eighth
		for range 60 {
			switch random.IntN(4) {
			case 0:
				now += random.Uint32N(4) * random.Uint32N(6)
				for {
					eighth, units, ok := h.Lapse(now)
					if !ok {
						break
					}
					require.GreaterOrEqual(t, now-eighth, uint32(9))
					require.Equal(t, plain[eighth], units)
					delete(plain, eighth)
				}
				require.Equal(t, now, h.Eighth)
			case 1:
				units := random.Uint32N(5)
				h.Add(now, units)
				plain[now] += units
			default:
				for eighth, units := range plain {
					units = random.Uint32N(units + 1)
					h.Remove(eighth, units)
					plain[eighth] -= units
					break
				}
			}
			require.Equal(t, plain.total(), h.Total())
			for eighth, units := range plain {
				require.True(t, units == 0 || h.Has(eighth))
			}
		}
	}
}

// TestHeldOfAnotherLength: what is held goes on where the hold's length changes, until
// as long after the eighth in which it was last known to run as the new length says, and
// its ends are found.
func TestHeldOfAnotherLength(t *testing.T) {
	long, short := Window{Algorithm: Concurrency, PeriodNs: 600e9}, Window{Algorithm: Concurrency, PeriodNs: 10e9}
	h := Held{Eighth: 100}
	h.Add(95, 2)
	h.Add(99, 1)
	h.Add(100, 3)
	h.Scale(&long, &short)
	require.EqualValues(t, 6059, h.Eighth, "the last of the eighth 100")
	require.EqualValues(t, 6, h.Total())
	require.EqualValues(t, 6059, short.EighthBy(101*long.EighthNs()), "as a receipt has it now")
	h.Remove(6059, 1)
	h.Remove(short.EighthBy(96*long.EighthNs()), 2)
	require.EqualValues(t, 3, h.Total())
	eighth, units, ok := h.Lapse(6068)
	require.Equal(t, []any{uint32(6051), uint32(1), true}, []any{eighth, units, ok}, "of the eighth 99")
	eighth, units, ok = h.Lapse(6068)
	require.Equal(t, []any{uint32(6059), uint32(2), true}, []any{eighth, units, ok})

	h = Held{Eighth: 6059}
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
	require.EqualValues(t, 30, h.Total(), "by a receipt that has not seen a change between")
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
			if want += w.PeriodNs; w.Algorithm == Calendar {
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

// TestChargeWithoutTheKeysLimits: what is charged to a key of which only the rule's limits
// are known, with what may be others', counts as much as by the key's own limits, and as long.
func TestChargeWithoutTheKeysLimits(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		own := Window{Algorithm: FixedWindowPerKey, PeriodNs: 20, Limit: 1 + random.Uint32N(5)}
		own.Pays = own.Limit * random.Uint32N(2)
		rule := own
		rule.Pays = min(own.Pays, 1+random.Uint32N(own.Limit))
		var u Usage
		own.Add(&u, 1000, 1+random.Uint32N(8))
		v, last := u, int64(1000)
		for range 5 {
			at := last + random.Int64N(30)
			units := 1 + random.Uint32N(3)
			own.Roll(&u, last, at)
			if random.IntN(2) == 0 { // else it may be another key's
				own.Add(&u, at, units)
			}
			rule.Charge(&v, last, at, units)
			last = at
			require.GreaterOrEqual(t, v.Used, u.Used)
			require.GreaterOrEqual(t, rule.Expiry(&v, last), own.Expiry(&u, last))
		}
	}
}
