package keyed

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func keys(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "user-" + strconv.Itoa(100_000_000+i)
	}
	return list
}

func BenchmarkHit(b *testing.B) {
	many := keys(100_000)
	for _, c := range []struct {
		name string
		b    *Builder
	}{
		{"window", New().Window(time.Hour, 1<<31)},
		{"window, fixed clock", New().Window(time.Hour, 1<<31).Clock(func() time.Time { return time.Unix(1_700_000_000, 0) })},
		{"window, jitter", New().Window(time.Hour, 1<<31, Jitter(50))},
		{"window per key", New().WindowPerKey(time.Hour, 1<<31)},
		{"sliding counter", New().SlidingCounter(time.Hour, 1<<31)},
		{"sliding log of 100", New().SlidingLog(time.Hour, 100)},
		{"token bucket", New().TokenBucket(time.Hour, 1<<31)},
		{"three windows", New().Window(time.Minute, 1<<31).Window(time.Hour, 1<<31).Window(24*time.Hour, 1<<31)},
	} {
		l, err := c.b.Capacity(100_000).Build()
		require.NoError(b, err)
		for _, k := range many {
			l.Hit(k)
		}
		b.Run(c.name+"/single", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.Hit(many[i*7919%len(many)])
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for i := rand.IntN(len(many)); p.Next(); i++ {
					l.Hit(many[i*7919%len(many)])
				}
			})
		})
	}
}
