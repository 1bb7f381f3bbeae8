package decision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestVisit measures two cases, in short: what the figures are is not held, but
// that they are there, and that a filter that does nothing is noticed.
func TestVisit(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	b := &bench{envoy: binary, pairs: 3, turn: 10 * time.Millisecond, warmUp: 100 * time.Millisecond}
	require.NoError(t, b.start())
	defer b.close()
	for _, s := range subjects() {
		if s.name != "floor" && s.name != "local" {
			continue
		}
		got, err := b.visit(t.Context(), s)
		require.NoError(t, err, s.name)
		require.Positive(t, got.ratio)
		require.Greater(t, got.baseUs, 1.0)
		require.Greater(t, got.rss, uint64(1<<20))
		require.GreaterOrEqual(t, got.admitted, int(slowRate*slowTime.Seconds()))
		require.Zero(t, got.denied)
		require.Positive(t, got.test.p50)
		require.GreaterOrEqual(t, got.test.p99, got.test.p50)

		s.proof = "local.http_local_rate_limit.rate_limited"
		_, err = b.visit(t.Context(), s)
		require.ErrorContains(t, err, "is 0 after", s.name)
	}
}
