package sample_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/sample"
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
		{[]float64{0, 10}, 0, 0},
	} {
		before := slices.Clone(c.list)
		require.InDelta(t, c.want, sample.Quantile(c.list, c.share), 1e-12, "%v", c)
		require.Equal(t, before, c.list, "the list stays in its order")
	}
	require.True(t, math.IsNaN(sample.Median(nil)))
}

func TestSpread(t *testing.T) {
	require.Equal(t, sample.Spread{Median: 2, Least: 1, Most: 3}, sample.SpreadOf([]float64{3, 1, 2}))
	require.Equal(t, sample.Spread{Median: 1.5, Least: 1, Most: 2}, sample.SpreadOf([]float64{2, 1}))
}

func TestRatios(t *testing.T) {
	require.Equal(t, []float64{0.5, 2}, sample.Ratios([]float64{1, 8}, []float64{2, 4}))
	require.InDelta(t, 0.5, sample.MedianRatio([]float64{1, 50, 2}, []float64{2, 100, 5}), 0, "place by place")
}
