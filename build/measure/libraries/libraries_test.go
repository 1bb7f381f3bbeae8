// Package libraries asks the keyed library and other rate limit libraries for Go the
// same question: may this key go on? `make bench-keyed` runs it.
//
// Its invariant: all count the same keys, none reaches its limit, and no key is the very
// bytes that a limiter has kept.
package libraries

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/sluice-ratelimit/sluice/shared/keyed"
)

const (
	keys      = 100_000
	unreached = 1 << 30 // a limit that no run reaches
)

// limiters say whether a key may go on.
var limiters = []struct {
	name  string
	build func(tb testing.TB) (allow func(key string) bool)
}{
	{"keyed/window", ours(keyed.New().Window(time.Hour, unreached))},
	{"keyed/window-per-key", ours(keyed.New().WindowPerKey(time.Hour, unreached))},
	{"keyed/sliding-counter", ours(keyed.New().SlidingCounter(time.Hour, unreached))},
	{"keyed/token-bucket", ours(keyed.New().TokenBucket(time.Hour, unreached))},
	{"keyed/three-windows", ours(keyed.New().Window(time.Minute, unreached).Window(time.Hour,
		unreached).Window(24*time.Hour, unreached))},
	{"go-limiter/window-per-key", goLimiter},
	{"ulule/window-per-key", ululeLimiter},
	{"throttled/GCRA", throttledLimiter},
	{"x-time-rate/token-bucket-in-a-map", timeRate},
}

func ours(b *keyed.Builder) func(testing.TB) func(string) bool {
	return func(tb testing.TB) func(string) bool {
		l, err := b.Capacity(keys).Build()
		require.NoError(tb, err)
		return func(key string) bool { return l.Hit(key).Allowed }
	}
}

func goLimiter(tb testing.TB) func(string) bool {
	store, err := memorystore.New(&memorystore.Config{Tokens: unreached, Interval: time.Hour})
	require.NoError(tb, err)
	return func(key string) bool {
		_, _, _, ok, err := store.Take(context.Background(), key)
		return ok && err == nil
	}
}

func ululeLimiter(testing.TB) func(string) bool {
	l := ulule.New(memory.NewStore(), ulule.Rate{Period: time.Hour, Limit: unreached})
	return func(key string) bool {
		c, err := l.Get(context.Background(), key)
		return !c.Reached && err == nil
	}
}

func throttledLimiter(tb testing.TB) func(string) bool {
	store, err := memstore.NewCtx(0)
	require.NoError(tb, err)
	l, err := throttled.NewGCRARateLimiterCtx(store,
		throttled.RateQuota{MaxRate: throttled.PerHour(unreached), MaxBurst: unreached})
	require.NoError(tb, err)
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(context.Background(), key, 1)
		return !limited && err == nil
	}
}

// timeRate is the map of limiters that users of x/time/rate write.
func timeRate(testing.TB) func(string) bool {
	var mu sync.RWMutex
	limiters := make(map[string]*rate.Limiter)
	return func(key string) bool {
		mu.RLock()
		l := limiters[key]
		mu.RUnlock()
		if l == nil {
			mu.Lock()
			l = limiters[key]
			if l == nil {
				l = rate.NewLimiter(rate.Limit(unreached)/3600, unreached)
				limiters[key] = l
			}
			mu.Unlock()
		}
		return l.Allow()
	}
}

func key(i int) string { return "user-" + strconv.Itoa(100_000_000+i) }

// heap is the bytes of the heap that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestLimiters(t *testing.T) {
	for _, l := range limiters {
		allow := l.build(t)
		for range 3 {
			require.True(t, allow("a"), l.name)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	for _, l := range limiters {
		b.Run(l.name, func(b *testing.B) {
			before := heap()
			allow := l.build(b)
			for i := range keys { // each key is made for one hit, as a request's is
				require.True(b, allow(key(i)))
			}
			bytes := float64(heap()-before) / keys
			asked := make([]string, keys) // in random order, each near the one before in memory
			for i, at := range rand.Perm(keys) {
				asked[i] = key(at)
			}
			b.Run("many-keys", func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					allow(asked[i%keys])
				}
				b.ReportMetric(bytes, "B/key")
			})
			b.Run("parallel", func(b *testing.B) {
				b.RunParallel(func(p *testing.PB) {
					for i := rand.IntN(keys); p.Next(); i++ {
						allow(asked[i%keys])
					}
				})
			})
			b.Run("one-key", func(b *testing.B) {
				for b.Loop() {
					allow(asked[0])
				}
			})
		})
	}
}
