package keyed

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryOfALimiterIsBounded(t *testing.T) {
	for _, c := range []struct {
		name     string
		b        *Builder
		capacity uint32
		maxBytes int64 // promised bytes a key
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
		{"sixteen sliding logs of 512", many((*Builder).SlidingLog, 512), 20, 330_000},
		{"a window with a block", New().Window(time.Hour, 9).Block(time.Hour), 65536, 60},
		{"sixteen jittered windows", many((*Builder).Window, 9, Jitter(10)), 4096, 500},
	} {
		if testing.Short() && c.capacity > 10_000 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			crowd := keys(2 * int(c.capacity))
			l, used := heapOf(func() *Limiter {
				l, _ := build(t, c.b.Capacity(c.capacity))
				use(l, crowd)
				return l
			})
			each := used / int64(c.capacity)
			t.Logf("%d bytes for %d keys, %d a key; MaxBytes %d; %d shards", used, c.capacity, each, l.MaxBytes(), len(l.shards))
			require.LessOrEqual(t, used, l.MaxBytes())
			require.LessOrEqual(t, l.MaxBytes(), used+used/4+8<<10*int64(len(l.shards)),
				"the bound is close to the memory in use")
			require.LessOrEqual(t, l.MaxBytes()/int64(c.capacity), c.maxBytes)
			s := l.Stats()
			require.Less(t, int64(s.Bytes), l.MaxBytes())
			require.GreaterOrEqual(t, s.Slots, uint64(c.capacity))
		})
	}
}

func TestAnIdleLimiterIsSmall(t *testing.T) {
	l, used := heapOf(func() *Limiter {
		l, _ := build(t, New().SlidingLog(time.Hour, 512).Capacity(1<<20))
		l.Hit("a")
		for _, key := range keys(1000) {
			l.Peek(key)
		}
		return l
	})
	require.Less(t, used, l.MaxBytes()/100)
}

func TestHitsAllocateNothing(t *testing.T) {
	long := string(make([]byte, 5000))
	for name, b := range map[string]*Builder{
		"window": New().Window(time.Hour, 100),
		"jitter": New().Window(time.Hour, 100, Jitter(10)),
		"block":  New().Window(time.Hour, 100).Block(time.Hour).Prolong(),
		"layered, floods": New().Window(time.Hour, 100).WindowPerKey(time.Hour, 100).
			SlidingLog(time.Hour, 20).SlidingCounter(time.Hour, 100).TokenBucket(time.Hour, 10).Capacity(20),
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

// many returns a builder with as many windows as a limiter can have.
func many(
	add func(*Builder, time.Duration, uint32, ...WindowOption) *Builder, n uint32, options ...WindowOption,
) *Builder {
	b := New()
	for i := range 16 {
		add(b, time.Duration(i+1)*time.Hour, n, options...)
	}
	return b
}

// use makes the limiter as large as it gets. It hits some keys until they are
// denied, which fills their logs. Then it hits all keys, and more until each chunk
// of the tables exists. The limiter's seed decides in which chunk a key lies, so no
// fixed set of keys reaches all chunks.
func use(l *Limiter, crowd []string) {
	for _, key := range crowd[:min(len(crowd)/2, 50)] {
		for l.Hit(key).Allowed {
		}
		l.Get(key)
	}
	for _, key := range crowd {
		l.Hit(key)
	}
	for i := 0; !l.allChunksExist(); i++ {
		l.Hit(fmt.Sprint(i))
	}
}

func (l *Limiter) allChunksExist() bool {
	for i := range l.shards {
		if s := &l.shards[i].store; s.made < uint64(len(s.chunks)) {
			return false
		}
	}
	return true
}

// heapOf returns a limiter and how many bytes it takes: the least of several, because the
// heap grows by 5 kB whenever the runtime starts a thread.
func heapOf(made func() *Limiter) (l *Limiter, bytes int64) {
	bytes = math.MaxInt64
	for range 2 {
		before := live()
		l := made()
		bytes = min(bytes, live()-before)
		runtime.KeepAlive(l)
	}
	return made(), bytes
}

func live() int64 {
	runtime.GC()
	runtime.GC() // what a pool held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
