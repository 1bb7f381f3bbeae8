package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// Hits in a window's first tenth that exceed the limit together with those in
// the last tenth of the window before are a spike, each unit once.
func TestBoundarySpikes(t *testing.T) {
	type hits struct {
		ms   int64
		n    int
		want uint64 // the metric after them
	}
	for _, c := range []struct {
		name, limits string
		steps        []hits
	}{
		{"around the boundary", `"5/10s"`, []hits{{9000, 4, 0}, {10000, 1, 0}, {10999, 3, 3}, {11000, 1, 3}}},
		{"before the last tenth", `"5/10s"`, []hits{{8999, 5, 0}, {10000, 5, 0}}},
		{"after the first tenth", `"5/10s"`, []hits{{9999, 5, 0}, {11000, 5, 0}}},
		{"a window between", `"5/10s"`, []hits{{9999, 5, 0}, {20000, 5, 0}}},
		{"every boundary", `"5/10s"`, []hits{{9500, 5, 0}, {10500, 2, 2}, {19500, 3, 2}, {20500, 5, 5}}},
		{"the whole limit twice", `"5/10s"`, []hits{{9500, 9, 0}, {10500, 9, 5}}},
		{"offset", `{"requests":5,"per":"10s","offset":"3s"}`, []hits{{12500, 5, 0}, {13500, 5, 5}}},
		{"months", `"5/month"`, []hits{{31*86_400_000 - 1, 5, 0}, {31 * 86_400_000, 2, 2}, {59*86_400_000 - 1, 3, 2}, {59 * 86_400_000, 5, 5}}},
		{"the shortest aligned window", `{"requests":5,"per":"1s","algorithm":"token_bucket"},"5/10s","100/1h"`, []hits{{9500, 5, 0}, {10500, 5, 5}}},
		{"none aligned", `{"requests":5,"per":"10s","algorithm":"fixed_window_per_key"}`, []hits{{9500, 5, 0}, {10500, 5, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := hosttest.New()
			e := compileJSON(t, p, `{"name":"r","limits":[`+c.limits+`]}`)
			for i, s := range c.steps {
				p.Clock = s.ms * 1e6
				admits(p, e, s.n)
				require.Equal(t, s.want, e.rules[0].Metrics.BoundarySpikes, "step %d", i)
			}
		})
	}
}

func TestWindowResets(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["5/10s",{"requests":9,"per":"1m","algorithm":"fixed_window_per_key"}]}`)
	for _, c := range []struct {
		ms   int64
		want uint64
	}{{0, 0}, {5000, 0}, {10000, 1}, {20000, 2}, {20000, 2}, {59999, 3}, {60000, 5}} {
		p.Clock = c.ms * 1e6
		require.True(t, e.Decide().Allowed)
		require.Equal(t, c.want, e.rules[0].Metrics.WindowResets, "%d ms", c.ms)
	}
}
