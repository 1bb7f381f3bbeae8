package sample_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		list  []float64
		share float64
		want  float64
	}{
		{[]float64{5}, 0.99, 5},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{0, 10}, 0.25, 2.5},
		{[]float64{0, 10}, 1, 10},
	} {
		before := slices.Clone(c.list)
		require.InDelta(t, c.want, sample.Quantile(c.list, c.share), 1e-12, "%v", c)
		require.Equal(t, before, c.list, "the list keeps its order")
	}
	require.True(t, math.IsNaN(sample.Median(nil)))
	require.Equal(t, sample.Spread{Median: 2, Min: 1, Max: 3}, sample.SpreadOf([]float64{3, 1, 2}))
	require.Equal(t, []float64{0.5, 2}, sample.Ratios([]float64{1, 8}, []float64{2, 4}))
}
