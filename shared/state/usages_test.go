package state

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// TestUsagesRoundTrip: usages and floors are read as they were written.
func TestUsagesRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	windows := []limit.Window{
		aligned(5, second, 0), jittered(second, 50), perKey(5, second), elastic(second),
		slidingLog(limit.MaxLog, limit.MaxPeriodNs), slidingCounter(5, second), tokenBucket(5, 5, second),
	}
	l := NewLayout(windows, 4)
	b := newPage(&l, 1)
	// Within a period of the last times here, their low 56 bits overflow.
	for _, last := range []int64{1, second, 1_700_000_000 * second, 1<<56 - 1, 1 << 56, 1<<56 + 7, 24<<56 + limit.MaxPeriodNs/2, 25 << 56} {
		for range 200 {
			slot := r.IntN(4)
			b.place(&l, slot, r.Uint32())
			b.setTime(&l, slot, last)
			want := make([]limit.Usage, len(windows))
			for i, w := range windows {
				u := limit.Usage{Used: r.Uint32()}
				switch {
				case w.Algorithm == limit.SlidingWindowLog:
					u = limit.Usage{Log: make([]int64, r.IntN(limit.MaxLog+1)), Cut: r.IntN(2) == 0}
					at := last
					for i := range u.Log {
						u.Log[len(u.Log)-1-i] = at
						at -= min(r.Int64N(2*w.PeriodNs/int64(len(u.Log))+1), max(at-last+w.PeriodNs-1, 0))
					}
				case w.Algorithm == limit.SlidingWindowCounter:
					u.Prev = r.Uint32()
				case w.Algorithm == limit.TokenBucket:
					u = limit.Usage{Tokens: limit.Tokens{Hi: int64(int32(r.Uint32())), Lo: r.Uint64()}, EndNs: r.Int64()}
				case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
					u.EndNs, u.Slides = r.Int64(), r.IntN(2) == 0
				}
				want[i] = u
				b.setUsage(&l, slot, i, &u)
			}
			for i := range windows {
				require.Equal(t, want[i], b.usage(&l, slot, i, make([]int64, 0, 8)), "time %d, window %d", last, i)
			}
		}
	}
	for i, w := range windows {
		f := limit.Usage{Used: math.MaxUint32}
		switch {
		case w.Algorithm == limit.SlidingWindowLog:
			f.EndNs = math.MaxInt64
		case w.Algorithm == limit.SlidingWindowCounter:
			f.Prev = math.MaxUint32
		case w.Algorithm == limit.TokenBucket:
			f.Prev, f.EndNs = 77, 1<<62
		case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
			f.EndNs = math.MaxInt64
		}
		b.setFloor(&l, i, f)
		require.Equal(t, f, b.floor(&l, i))
	}
}

// TestLogsGrowAndShrink: no unit is lost when a limit is raised, and a layout with
// more or less room than before gives no quota back.
func TestLogsGrowAndShrink(t *testing.T) {
	store := newMemory()
	key, now := []byte("k"), 100*second
	small := configured(store, "o", 1, definition("x", 4, slidingLog(3, anHour)))
	require.True(t, hit(t, small, key, now, 2))
	large := configured(store, "o", 2, definition("x", 4, slidingLog(6, anHour)))
	require.True(t, hit(t, large, key, now+1, 4), "a raised limit admits at once")
	require.False(t, hit(t, large, key, now+2, 1))
	require.False(t, hit(t, small, key, now+2, 1), "the old worker sees them all")
	lowered := configured(store, "o", 3, definition("x", 4, slidingLog(2, anHour)))
	require.False(t, hit(t, lowered, key, now+3, 1), "a lowered limit denies at once")
	require.EqualValues(t, 6, store.directory(t).tables[0].windows[0].Units, "a lowered limit forgets nothing")
	again := configured(store, "o", 4, definition("x", 4, slidingLog(6, anHour)))
	require.False(t, hit(t, again, key, now+anHour-1, 1))
	require.True(t, hit(t, again, key, now+anHour, 2))
	require.False(t, hit(t, again, key, now+anHour, 1))

	counted := limit.Usage{Log: []int64{1, 2, 3}}
	require.Equal(t, limit.Usage{Log: []int64{2, 3}, Cut: true}, refit(counted, 2))
	require.Equal(t, counted, refit(counted, 5))
	require.Equal(t, limit.Usage{Log: []int64{2, 2, 2, 3}, Cut: true}, refit(limit.Usage{Log: []int64{2, 3}, Cut: true}, 4))
}

func TestAPageOfLogsStaysSmall(t *testing.T) {
	for units := uint32(1); units <= limit.MaxLog; units++ {
		windows := []limit.Window{slidingLog(units, anHour)}
		g := GeometryFor(windows, 1_000_000)
		l := NewLayout(windows, int(g.Slots))
		require.LessOrEqual(t, l.ValueBytes(), 16<<10, "%d units, %d slots", units, g.Slots)
		require.GreaterOrEqual(t, g.Slots, uint8(4))
	}
}

// TestStoredAlgorithms: records hold every algorithm, and the random histories have it, but for
// months, which are longer than these: steptest has them.
func TestStoredAlgorithms(t *testing.T) {
	for _, a := range limit.Counting {
		part, floor := usageBytes(limit.Window{Algorithm: a})
		require.True(t, part > 0 && floor > 0, "algorithm %d", a)
		require.Equal(t, a != limit.Calendar, slices.ContainsFunc(slices.Concat(floorShapes...), func(w limit.Window) bool { return w.Algorithm == a }), "algorithm %d", a)
	}
}
