package keyed

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// frozen is a clock that tests set, as time since the epoch.
type frozen struct{ time.Duration }

func (f *frozen) now() time.Time { return time.Unix(0, int64(f.Duration)) }

func build(t testing.TB, b *Builder) (*Limiter, *frozen) {
	clock := &frozen{1000 * time.Second}
	l, err := b.Clock(clock.now).Build()
	require.NoError(t, err)
	return l, clock
}

// since returns the time since the epoch, -1 for the zero time.
func since(t time.Time) time.Duration {
	if t.IsZero() {
		return -1
	}
	return time.Duration(t.UnixNano())
}

// step is one operation on the key "k" and its result.
type step struct {
	at   int64 // in milliseconds since the epoch
	op   string
	n    uint32
	want string
}

func run(t *testing.T, l *Limiter, clock *frozen, steps []step) {
	t.Helper()
	for i, s := range steps {
		clock.Duration = time.Duration(s.at) * time.Millisecond
		got := ""
		switch s.op {
		case "hit":
			got = summary(l.HitN("k", s.n), s.at)
		case "peek":
			got = summary(l.PeekN("k", s.n), s.at)
		case "get":
			got = fmt.Sprint(l.Get("k"))
		case "inc":
			used, err := l.Inc("k", s.n)
			require.NoError(t, err)
			got = fmt.Sprint(used)
		case "set":
			used, err := l.Set("k", s.n)
			require.NoError(t, err)
			got = fmt.Sprint(used)
		case "expires":
			got = fmt.Sprint(since(l.ExpiresAt("k")))
		case "reset":
			had, err := l.Reset("k")
			require.NoError(t, err)
			got = fmt.Sprint(had)
		case "clean":
			got = fmt.Sprint(l.Clean())
		case "keys":
			got = fmt.Sprint(l.Stats().Keys)
		default:
			require.Fail(t, "no such operation", s.op)
		}
		require.Equal(t, s.want, got, "step %d: %s(%d) at %d ms", i, s.op, s.n, s.at)
	}
}

// summary returns a result in short: when the hit passes, what remains, when the
// window resets.
func summary(r Result, at int64) string {
	passes := "yes"
	switch {
	case r.RetryAfter == Never:
		passes = "never"
	case !r.Allowed:
		passes = "in " + r.RetryAfter.String()
	}
	return fmt.Sprintf("%s, %d left, reset in %s", passes, r.Remaining, time.Duration(r.ResetAt.UnixNano())-time.Duration(at)*time.Millisecond)
}

// TestLimiterIsTheArithmetic has the other algorithms.
func TestOperations(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name  string
		b     *Builder
		steps []step
	}{
		{"fixed window", New().Window(10*second, 3), []step{
			{1003_000, "peek", 1, "yes, 3 left, reset in 7s"},
			{1003_000, "expires", 0, "16m50s"},
			{1003_000, "keys", 0, "0"},
			{1003_000, "hit", 1, "yes, 2 left, reset in 7s"},
			{1003_000, "hit", 3, "in 7s, 2 left, reset in 7s"},
			{1003_000, "hit", 4, "never, 2 left, reset in 7s"},
			{1003_000, "hit", 0, "yes, 2 left, reset in 7s"},
			{1004_000, "hit", 2, "yes, 0 left, reset in 6s"},
			{1004_000, "peek", 1, "in 6s, 0 left, reset in 6s"},
			{1004_000, "hit", 0, "yes, 0 left, reset in 6s"},
			{1004_000, "get", 0, "3"},
			{1004_000, "inc", 5, "8"},
			{1004_000, "keys", 0, "1"},
			{1009_999, "get", 0, "8"},
			{1010_000, "get", 0, "0"},
			{1010_000, "keys", 0, "0"},
			{1010_000, "clean", 0, "1"},
			{1010_000, "clean", 0, "0"},
			{1010_000, "set", 2, "2"},
			{1010_000, "hit", 1, "yes, 0 left, reset in 10s"},
			{1010_000, "reset", 0, "true"},
			{1010_000, "reset", 0, "false"},
			{1010_000, "hit", 3, "yes, 0 left, reset in 10s"},
		}},
		{"months", New().Months(1, 2, UTCOffset(5*3600*second)), []step{
			{31*24*3600_000 - 5*3600_000 - 1, "hit", 2, "yes, 0 left, reset in 1ms"},
			{31*24*3600_000 - 5*3600_000, "hit", 2, "yes, 0 left, reset in 672h0m0s"}, // February 1970
			{40 * 24 * 3600_000, "peek", 1, "in 451h0m0s, 0 left, reset in 451h0m0s"},
			{40 * 24 * 3600_000, "expires", 0, "1411h0m0s"},
			{59*24*3600_000 - 5*3600_000, "hit", 1, "yes, 1 left, reset in 744h0m0s"},
		}},
		{"window per key", New().WindowPerKey(10*second, 3), []step{
			{1003_000, "peek", 1, "yes, 3 left, reset in 0s"},
			{1003_000, "expires", 0, "-1ns"},
			{1003_000, "hit", 2, "yes, 1 left, reset in 10s"},
			{1005_000, "hit", 1, "yes, 0 left, reset in 8s"},
			{1006_000, "hit", 1, "in 7s, 0 left, reset in 7s"},
			{1006_000, "expires", 0, "16m53s"},
			{1013_000, "get", 0, "0"},
			{1013_000, "expires", 0, "-1ns"},
			{1013_000, "inc", 1, "1"},
			{1014_000, "expires", 0, "17m3s"},
			{1014_000, "set", 3, "3"},
			{1014_000, "expires", 0, "17m4s"},
			{1014_000, "hit", 1, "in 10s, 0 left, reset in 10s"},
		}},
		{"limit 0", New().Window(10*second, 0), []step{
			{1000_000, "hit", 1, "never, 0 left, reset in 10s"},
			{1000_000, "hit", 0, "never, 0 left, reset in 10s"},
		}},
		{"a clock that was far ahead", New().Window(10*second, 2), []step{
			{9_000_000, "hit", 2, "yes, 0 left, reset in 10s"},
			{1004_000, "peek", 1, "in 6s, 0 left, reset in 6s"},
			{9_000_000, "get", 0, "2"}, // Peek has not rebased it
			{1004_000, "hit", 1, "in 6s, 0 left, reset in 6s"},
			{1010_000, "hit", 1, "yes, 1 left, reset in 10s"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, clock := build(t, c.b.Capacity(10))
			run(t, l, clock, c.steps)
		})
	}
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
		{"deny", Deny, Result{Full: true, Limit: 5, Remaining: 5, RetryAfter: 10 * time.Second}, ErrFull, Stats{Full: 3, Allowed: 4, Denied: 1}},
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

func TestDeniedHitsOfAKeyWithoutRoom(t *testing.T) {
	l, _ := build(t, New().WindowPerKey(10*time.Second, 5).Capacity(1).OnFull(Deny).CountDenied())
	require.True(t, l.Hit("a").Allowed)
	r := l.HitN("b", 6)
	require.Equal(t, Never, r.RetryAfter)
	require.True(t, r.Full, "it could not be counted")
	require.EqualValues(t, 1, l.Stats().Full)
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
