package keyed

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsBounded(t *testing.T) {
	for _, c := range []struct {
		name     string
		b        *Builder
		capacity uint32
		atMost   int64 // bytes a key, by promise
	}{
		{"one fixed window", New().Window(time.Hour, 9), 65536, 40},
		{"one fixed window, many keys", New().Window(time.Hour, 9), 1 << 17, 34},
		{"window per key", New().WindowPerKey(time.Hour, 9), 65536, 50},
		{"sliding counter", New().SlidingCounter(time.Hour, 9), 65536, 45},
		{"token bucket", New().TokenBucket(time.Hour, 9), 65536, 70},
		{"three fixed windows", New().Window(time.Second, 9).Window(time.Hour, 9).Window(time.Minute, 9), 65536, 60},
		{"sliding log of 10", New().SlidingLog(time.Hour, 10), 65536, 200},
		{"sliding log of 512", New().SlidingLog(time.Hour, 512), 1000, 22_000},
		{"sliding log of 512, ten keys", New().SlidingLog(time.Hour, 512), 10, 27_000},
		{"sliding log of 512, a hundred", New().SlidingLog(time.Hour, 512), 100, 19_000},
		{"ten keys", New().Window(time.Hour, 9), 10, 2000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l *Limiter
			used := heapOf(func() any {
				l, _ = build(t, c.b.Capacity(c.capacity))
				for i := range 2 * int(c.capacity) {
					l.Hit(fmt.Sprint(i))
				}
				return l
			})
			each := used / int64(c.capacity)
			t.Logf("%d bytes for %d keys, %d a key; MaxBytes %d; %d shards", used, c.capacity, each, l.MaxBytes(), len(l.shards))
			require.LessOrEqual(t, used, l.MaxBytes())
			require.LessOrEqual(t, l.MaxBytes(), used+used/4+8<<10*int64(len(l.shards)), "the bound is near what is used")
			require.LessOrEqual(t, l.MaxBytes()/int64(c.capacity), c.atMost)
			s := l.Stats()
			require.Less(t, int64(s.Bytes), l.MaxBytes())
			require.GreaterOrEqual(t, s.Slots, uint64(c.capacity))
		})
	}
}

func TestAnIdleLimiterIsSmall(t *testing.T) {
	var l *Limiter
	used := heapOf(func() any {
		l, _ = build(t, New().SlidingLog(time.Hour, 512).Capacity(1<<20))
		l.Hit("a")
		for _, key := range keys(1000) {
			l.Peek(key)
		}
		return l
	})
	require.Less(t, used, l.MaxBytes()/100)
}

func TestFewNewKeysFindNoRoom(t *testing.T) {
	const capacity = 100_000
	l, _ := build(t, New().Window(time.Hour, 9).Capacity(capacity).OnFull(Deny))
	for i := range capacity {
		l.Hit(fmt.Sprint(i))
	}
	require.Less(t, l.Stats().Full, uint64(capacity/50))

	exact, _ := build(t, New().Window(time.Hour, 9).Capacity(32).OnFull(Deny))
	for i := range 32 {
		require.True(t, exact.Hit(fmt.Sprint(i)).Allowed)
	}
	require.False(t, exact.Hit("one more").Allowed)
}

func TestHitsAllocateNothing(t *testing.T) {
	long := string(make([]byte, 5000))
	for name, b := range map[string]*Builder{
		"window":          New().Window(time.Hour, 100),
		"jitter":          New().Window(time.Hour, 100, Jitter(10)),
		"window per key":  New().WindowPerKey(time.Hour, 100),
		"sliding log":     New().SlidingLog(time.Hour, 100),
		"sliding counter": New().SlidingCounter(time.Hour, 100),
		"token bucket":    New().TokenBucket(time.Hour, 100),
		"layered, floods": New().Window(time.Hour, 100).SlidingLog(time.Hour, 20).TokenBucket(time.Hour, 10).Capacity(20),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := build(t, b)
			many := append(keys(500), long)
			var windows [16]Usage
			act := func() {
				key := many[rand.IntN(len(many))]
				l.Hit(key)
				l.PeekN(key, 5)
				l.Get(key)
				l.HitDetail(key, 1, windows[:0])
				_, _ = l.Inc(key, 0)
				_, _ = l.Reset(long)
			}
			for range 5000 {
				act()
			}
			require.Zero(t, testing.AllocsPerRun(2000, act))
		})
	}
}

func TestParseHex(t *testing.T) {
	for _, n := range []uint32{0, 1, 9, 10, 15, 16, 0xabcdef01, 0x01234567, 0x89abcdef, 1<<32 - 1, 2926} {
		require.Equal(t, n, parseHex(le.Uint64(fmt.Appendf(nil, "%08x", n))))
	}
}

// heapOf returns how much more memory is live after f than before.
func heapOf(f func() any) (bytes int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}
