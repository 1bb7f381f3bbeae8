// Package sample says what lies in the middle of a list of measurements, and how
// far they lie apart.
//
// Its invariant: it knows neither units nor what was measured. It must not import
// a package of this module: whatever measures stands on it.
package sample

import (
	"math"
	"slices"
)

// Spread is a median with what lies around it.
type Spread struct{ Median, Least, Most float64 }

// SpreadOf is the spread of a list that is not empty.
func SpreadOf(list []float64) Spread {
	return Spread{Median(list), slices.Min(list), slices.Max(list)}
}

// Median is the middle of a list, or between its two middles; NaN of none.
func Median(list []float64) float64 { return Quantile(list, 0.5) }

// Quantile is the value below which a share of the list lies, interpolated;
// NaN of an empty list.
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

// MedianRatio is the median of how much each of one list is of that at its place
// in the other: where the two were taken by turns, what slows the machine down
// for a while slows both.
func MedianRatio(of, to []float64) float64 { return Median(Ratios(of, to)) }

// Ratios divides each of one list by that at its place in the other.
func Ratios(of, to []float64) []float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / to[i]
	}
	return ratios
}
