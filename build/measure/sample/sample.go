// Package sample sums up repeated measurements: their median, their range, and
// the ratios of two series that were taken by turns.
//
// Its invariant: it knows neither units nor what was measured. It must not import
// another package of this module.
package sample

import (
	"math"
	"slices"
)

// Spread is a median and the range around it.
type Spread struct{ Median, Min, Max float64 }

// SpreadOf is the spread of a list; all NaN where the list is empty.
func SpreadOf(list []float64) Spread {
	return Spread{Median(list), Quantile(list, 0), Quantile(list, 1)}
}

// Median is the middle of a list; NaN where it is empty.
func Median(list []float64) float64 { return Quantile(list, 0.5) }

// Quantile is the value below which that share of the list lies, interpolated;
// NaN where the list is empty.
func Quantile(list []float64, share float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(list))
	at := share * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
}

// Ratios divides each value by the one at the same place of the other list. Where
// the two were taken by turns, what slows the machine for a while slows both.
func Ratios(of, to []float64) []float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / to[i]
	}
	return ratios
}
