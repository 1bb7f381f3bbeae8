package keyed

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// together runs f in n goroutines at once.
func together(n int, f func(worker int)) {
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() { f(i) })
	}
	done.Wait()
}

func TestConcurrentHitsAreExact(t *testing.T) {
	const units, workers = 100, 8
	for name, b := range map[string]*Builder{
		"jitter": New().Window(time.Hour, units, Jitter(20)),
		"layered": New().Window(time.Hour, units+7).TokenBucket(time.Hour, units+3, Burst(units)).WindowPerKey(time.Hour, units+1).
			SlidingLog(time.Hour, units+2).SlidingCounter(time.Hour, units+4),
		"counted denials": New().Window(time.Hour, units).CountDenied(),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := build(t, b)
			many := keys(50)
			passed := make([]atomic.Int64, len(many))
			together(workers, func(worker int) {
				for i := range 3 * units / workers * len(many) {
					n := (i*7 + worker) % len(many)
					if l.Hit(many[n]).Allowed {
						passed[n].Add(1)
					}
				}
			})
			tried := uint64(3*units/workers*len(many)) * workers
			for i := range passed {
				require.EqualValues(t, units, passed[i].Load(), many[i])
			}
			got := l.Stats()
			require.EqualValues(t, len(many)*units, got.Allowed)
			require.Equal(t, tried-got.Allowed, got.Denied)
			require.EqualValues(t, len(many), got.Keys)
		})
	}
}

func TestConcurrentOperations(t *testing.T) {
	l, err := New().Window(time.Hour, 1<<31).SlidingLog(time.Minute, 20).Capacity(5000).Build()
	require.NoError(t, err)
	together(8, func(worker int) {
		var windows []Usage
		for i := range 2000 {
			key := fmt.Sprint(i % 700)
			switch (i + worker) % 9 {
			case 0:
				l.Peek(key)
			case 1:
				l.Get(key)
			case 2:
				windows = l.Detail(key, windows[:0])
			case 3:
				_, _ = l.SetWindow(key, "1", 3)
			case 4:
				l.ExpiresAt(key)
			case 5:
				_, _ = l.Reset(key)
			case 6:
				if i%100 == 0 {
					l.Clean()
				}
			case 7:
				if i%100 == 0 {
					l.Stats()
				}
			default:
				l.Hit(key)
			}
		}
	})
	together(8, func(int) {
		for range 1000 {
			_, _ = l.IncWindow("counted", "0", 2)
		}
	})
	require.EqualValues(t, 16_000, l.Detail("counted", nil)[0].Used)
}
