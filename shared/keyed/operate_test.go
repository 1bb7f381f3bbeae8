package keyed

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// frozen is a clock that tests set, as time since the epoch.
type frozen struct{ time.Duration }

func (f *frozen) now() time.Time { return time.Unix(0, int64(f.Duration)) }

func keys(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "user-" + strconv.Itoa(100_000_000+i)
	}
	return list
}

func build(t testing.TB, b *Builder) (*Limiter, *frozen) {
	clock := &frozen{1000 * time.Second}
	l, err := b.Clock(clock.now).Build()
	require.NoError(t, err)
	return l, clock
}

func TestWindowsByNameAndIndex(t *testing.T) {
	l, _ := build(t, New().Window(time.Hour, 10, Name("hourly")).Window(time.Minute, 5))
	used, err := l.SetWindow("k", "hourly", 8)
	require.NoError(t, err)
	require.EqualValues(t, 8, used)
	used, err = l.IncWindow("k", "1", 2)
	require.NoError(t, err)
	require.EqualValues(t, 2, used)
	require.EqualValues(t, 8, l.Get("k"), "2 of 10 remain, and 3 of 5")
	used, err = l.IncWindow("k", "0", 1)
	require.NoError(t, err)
	require.EqualValues(t, 9, used)

	got := l.Detail("k", nil)
	require.Equal(t, []Usage{
		{Name: "hourly", Period: time.Hour, Limit: 10, Used: 9, Remaining: 1, ResetAt: time.Unix(3600, 0)},
		{Period: time.Minute, Limit: 5, Used: 2, Remaining: 3, ResetAt: time.Unix(1020, 0)},
	}, got)
	r, windows := l.HitDetail("k", 1, got[:0])
	require.Equal(t, Result{Allowed: true, Window: 0, Limit: 10, ResetAt: time.Unix(3600, 0)}, r)
	require.EqualValues(t, 10, windows[0].Used)
	require.EqualValues(t, 3, windows[1].Used)

	for _, name := range []string{"daily", "", "2", "-1", "00"} {
		_, err = l.SetWindow("k", name, 1)
		require.ErrorContains(t, err, "no window has that name: use the name given with Name, or an index from 0 to 1")
		_, err = l.IncWindow("k", name, 1)
		require.Error(t, err)
	}
}

func TestJitterIsTheKeysOwn(t *testing.T) {
	l, clock := build(t, New().Window(time.Hour, 1, Jitter(50)))
	again, _ := build(t, New().Window(time.Hour, 1, Jitter(50)))
	ends := map[time.Time]bool{}
	for _, key := range keys(50) {
		end := l.Hit(key).ResetAt
		require.Equal(t, end, again.Hit(key).ResetAt, "the same in every limiter")
		require.Positive(t, end.Sub(clock.now()))
		require.LessOrEqual(t, end.Sub(time.Unix(3600, 0)), 30*time.Minute)
		ends[end] = true
		require.False(t, l.Hit(key).Allowed)
	}
	require.Len(t, ends, 50)
	clock.Duration = 3600*time.Second + 30*time.Minute
	for _, key := range keys(50) {
		require.True(t, l.Hit(key).Allowed)
	}
}

func TestFull(t *testing.T) {
	for _, c := range []struct {
		name   string
		onFull OnFull
		want   Result
		err    error
		stats  Stats
	}{
		{"inherit", Inherit, Result{Allowed: true, Limit: 5, Remaining: 4}, nil, Stats{Evicted: 1, Allowed: 5}},
		{"deny", Deny, Result{Full: true, Limit: 5, Remaining: 5, RetryAfter: 10 * time.Second}, ErrFull,
			Stats{Full: 3, Allowed: 4, Denied: 1}},
		{"allow", Allow, Result{Allowed: true, Full: true, Limit: 5, Remaining: 5}, ErrFull, Stats{Full: 3, Allowed: 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, _ := build(t, New().WindowPerKey(10*time.Second, 5).Capacity(4).OnFull(c.onFull))
			for i, key := range []string{"a", "b", "c", "d"} {
				require.True(t, l.HitN(key, uint32(i+1)).Allowed)
			}
			require.EqualValues(t, 4, l.Stats().Keys)
			r := l.Hit("new")
			r.ResetAt = time.Time{}
			require.Equal(t, c.want, r)
			_, err := l.Inc("newer", 1)
			require.ErrorIs(t, err, c.err)
			_, err = l.Set("newest", 1)
			require.ErrorIs(t, err, c.err)
			got := l.Stats()
			require.EqualValues(t, 4, got.Keys)
			require.EqualValues(t, 4, got.Slots)
			require.Equal(t, c.stats.Full, got.Full)
			require.Equal(t, c.stats.Allowed, got.Allowed)
			require.Equal(t, c.stats.Denied, got.Denied)
			if c.onFull == Inherit {
				require.EqualValues(t, 3, got.Evicted)
			}
		})
	}
}

// A hit that a window denies is denied whatever OnFull is, and is Full if it could not be counted.
func TestDeniedHitsOfAKeyWithoutRoom(t *testing.T) {
	for _, onFull := range []OnFull{Deny, Allow} {
		l, _ := build(t, New().WindowPerKey(10*time.Second, 5).Capacity(1).OnFull(onFull).CountDenied())
		require.True(t, l.Hit("a").Allowed)
		r := l.HitN("b", 6)
		require.False(t, r.Allowed)
		require.Equal(t, Never, r.RetryAfter)
		require.True(t, r.Full)
		require.EqualValues(t, 1, l.Stats().Full)
	}
}

// A key that was denied makes room for others, which its block denies. If each of them prolonged it,
// it would never end.
func TestKeysWithoutARecordProlongNoBlock(t *testing.T) {
	for name, b := range map[string]*Builder{
		"denied hits do not count": New(),
		"denied hits count":        New().CountDenied(),
	} {
		now := time.Unix(1000, 0)
		l, err := b.Window(time.Minute, 1).Block(time.Hour).Prolong().Capacity(1).
			Clock(func() time.Time { return now }).Build()
		require.NoError(t, err)
		for _, allowed := range []bool{true, false} {
			require.Equal(t, allowed, l.Hit("denied").Allowed, name)
		}
		l.Hit("makes it leave")
		for i := range 6 {
			require.False(t, l.Hit(string(rune('a'+i))).Allowed, name)
			now = now.Add(10 * time.Minute)
		}
		require.True(t, l.Hit("z").Allowed, name)
		require.EqualValues(t, 1, l.Stats().Blocks, name)
	}
}

func TestDamageIsNotHidden(t *testing.T) {
	l, _ := build(t, New().Window(time.Hour, 2).Capacity(1))
	l.Hit("a")
	l.shards[0].store.chunks[0][1] = 99
	require.PanicsWithValue(t, "keyed: cannot read a key: status 4: the counters are damaged", func() { l.Peek("a") })
}

func TestTimesOutsideTheRange(t *testing.T) {
	now := time.Unix(0, 0)
	l, err := New().Window(time.Hour, 2).Clock(func() time.Time { return now }).Build()
	require.NoError(t, err)
	now = time.Time{}
	require.Equal(t, time.Unix(3600, 0), l.Hit("a").ResetAt)
	now = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	require.Equal(t, latest.Add(time.Hour).UnixNano(), l.Hit("a").ResetAt.UnixNano())
	require.Equal(t, latest.Add(time.Hour).UnixNano(), l.Hit("b").ResetAt.UnixNano())
}
