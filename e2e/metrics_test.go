package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
