package libraries

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/sluice-ratelimit/sluice/shared/keyed"
)

// unreached is a limit that no run reaches: every hit that is measured passes.
const unreached = 1 << 30

const product = "github.com/sluice-ratelimit/sluice"

// limiter is a way to ask whether a key may go on.
type limiter struct {
	module string
	counts string
	build  func(keys int) (allow func(key string) bool, err error)
}

var limiters = []limiter{
	ours("a fixed window", func() *keyed.Builder { return keyed.New().Window(time.Hour, unreached) }),
	{"github.com/sethvargo/go-limiter", "a fixed window per key", goLimiter},
	ours("a fixed window per key", func() *keyed.Builder { return keyed.New().WindowPerKey(time.Hour, unreached) }),
	ours("a sliding counter", func() *keyed.Builder { return keyed.New().SlidingCounter(time.Hour, unreached) }),
	ours("a token bucket", func() *keyed.Builder { return keyed.New().TokenBucket(time.Hour, unreached) }),
	ours("three fixed windows", func() *keyed.Builder {
		return keyed.New().Window(time.Minute, unreached).Window(time.Hour, unreached).Window(24*time.Hour, unreached)
	}),
	{"github.com/ulule/limiter/v3", "a fixed window per key", ululeLimiter},
	{"github.com/throttled/throttled/v2", "GCRA", throttledLimiter},
	{"golang.org/x/time", "a token bucket, in a map", timeRate},
}

func ours(counts string, b func() *keyed.Builder) limiter {
	return limiter{product, counts, func(keys int) (func(string) bool, error) {
		l, err := b().Capacity(uint32(keys)).Build()
		if err != nil {
			return nil, err
		}
		return func(key string) bool { return l.Hit(key).Allowed }, nil
	}}
}

func goLimiter(int) (func(string) bool, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: unreached, Interval: time.Hour})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return func(key string) bool {
		_, _, _, ok, err := store.Take(ctx, key)
		return ok && err == nil
	}, nil
}

func ululeLimiter(int) (func(string) bool, error) {
	l := ulule.New(memory.NewStore(), ulule.Rate{Period: time.Hour, Limit: unreached})
	ctx := context.Background()
	return func(key string) bool {
		c, err := l.Get(ctx, key)
		return !c.Reached && err == nil
	}, nil
}

func throttledLimiter(int) (func(string) bool, error) {
	store, err := memstore.NewCtx(0)
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerHour(unreached), MaxBurst: unreached})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited && err == nil
	}, nil
}

// timeRate is the map of limiters that users of x/time/rate write.
func timeRate(int) (func(string) bool, error) {
	var mu sync.RWMutex
	limiters := make(map[string]*rate.Limiter)
	return func(key string) bool {
		mu.RLock()
		l := limiters[key]
		mu.RUnlock()
		if l == nil {
			mu.Lock()
			if l = limiters[key]; l == nil {
				l = rate.NewLimiter(rate.Limit(unreached)/3600, unreached)
				limiters[key] = l
			}
			mu.Unlock()
		}
		return l.Allow()
	}, nil
}

// versioned returns the module's name with the version that was linked.
func versioned(module string) (string, error) {
	if module == product {
		return path.Base(product) + " `shared/keyed`", nil
	}
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if d.Path == module {
			return "`" + strings.TrimPrefix(module, "github.com/") + "` " + d.Version, nil
		}
	}
	return "", fmt.Errorf("find the version of %s: it is not linked", module)
}
