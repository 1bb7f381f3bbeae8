package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

func TestWindowResets(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["5/10s",{"requests":9,"per":"1m","algorithm":"fixed_window_per_key"}]}`)
	for _, c := range []struct {
		ms   int64
		want uint64
	}{{0, 0}, {5000, 0}, {10000, 1}, {20000, 2}, {20000, 2}, {59999, 3}, {60000, 5}} {
		p.Clock = c.ms * 1e6
		require.True(t, e.Decide().Allowed)
		require.Equal(t, c.want, e.rules.List[0].Metrics.WindowResets, "%d ms", c.ms)
	}
}
