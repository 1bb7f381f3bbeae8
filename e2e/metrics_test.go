package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A client that uses 60 of 100 units at the end of a window and 60 at the beginning of
// the next causes a spike of exactly 20 units, if there is one worker.
func TestBoundarySpike(t *testing.T) {
	const per, cost = 2 * time.Second, 60
	each(t, func(t *testing.T, d driver) {
		p := d.listen(t, proxyOptions{workers: 1, policy: `
version: 1
rules:
  - {name: spiky, limits: [100/2s], cost: {header: x-cost, default: 0, min: 0}}
  - {name: calm, limits: [120/2s], cost: {header: x-cost, default: 0, min: 0}}
`})
		hit := func() { require.Equal(t, allowed, p.status(t, "/", "x-cost", fmt.Sprint(cost))) }
		// Try again in new windows unless both hits were answered in time. After a late
		// first hit there is no second one: both might fall into one window, which has no
		// room for both.
		opened := uint64(0)
		eventually(t, time.Minute, "two hits close enough to a boundary", func() bool {
			before, _ := p.metric(t, "rate_limit_boundary_spikes_total", "spiky")
			boundary := time.Now().Truncate(per).Add(2 * per)
			time.Sleep(time.Until(boundary.Add(-per / 20)))
			hit()
			opened++
			inTime := time.Now().Before(boundary)
			if inTime {
				time.Sleep(time.Until(boundary.Add(per / 100)))
				hit()
				opened++
				inTime = time.Now().Before(boundary.Add(per / 10))
			}
			time.Sleep(time.Until(boundary.Add(2 * per))) // also lets the metrics be flushed
			after, _ := p.metric(t, "rate_limit_boundary_spikes_total", "spiky")
			if inTime {
				require.EqualValues(t, 20, after-before)
			}
			return inTime
		})
		_, calm := p.metric(t, "rate_limit_boundary_spikes_total", "calm")
		require.False(t, calm, "120 units are within the limit")
		for _, rule := range []string{"spiky", "calm"} {
			resets, _ := p.metric(t, "rate_limit_window_resets_total", rule)
			require.Equal(t, opened-1, resets, "every hit but the first found a window that had ended")
		}
	})
}

// The memory gauge of a table whose pages all exist is what validate prints, whichever
// worker set it last. stats has the sum over all workers.
func TestMemoryGaugeAndStats(t *testing.T) {
	const keys = 3000
	each(t, func(t *testing.T, d driver) {
		policy := strings.ReplaceAll(oneRule("limits: [2/"+far+"], capacity: 2048"), "per-user", "gauged")
		p := d.listen(t, proxyOptions{policy: policy})
		_, before := p.metric(t, "rate_limit_memory_usage_bytes", "gauged")
		require.False(t, before, "there is no table yet")
		got := p.load(16).send(t, 4*keys, func(i int) request { return request{"/", "x-user-id", fmt.Sprint(i % keys)} })
		printed, _ := memoryOf(t, policy)
		eventually(t, 20*time.Second, "the gauge to be what validate prints", func() bool {
			bytes, _ := p.metric(t, "rate_limit_memory_usage_bytes", "gauged")
			return bytes == uint64(printed)
		})
		passed, refused := uint64(count(got, allowed)), uint64(count(got, denied))
		require.EqualValues(t, 4*keys, passed+refused)
		eventually(t, 20*time.Second, "every worker to answer with the sum of all", func() bool {
			for range 3 * workers {
				metrics := p.operate(t, "stats", "").Rules[0].Metrics
				// The request that waited for the proxy had no key, so no rule counted it.
				if metrics["allowed"] != passed || metrics["denied"] != refused {
					return false
				}
			}
			return true
		})
	})
}
