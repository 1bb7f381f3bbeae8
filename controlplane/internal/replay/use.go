package replay

import (
	"maps"
	"slices"
)

// Uses counts how many times each number of units was used. Numbers that differ are
// at most as many as the square root of twice all units.
type Uses map[uint32]int64

// Sum returns how many times units were used.
func (u Uses) Sum() (n int64) {
	for _, times := range u {
		n += times
	}
	return n
}

// units returns how many units were used.
func (u Uses) units() (n int64) {
	for units, times := range u {
		n += int64(units) * times
	}
	return n
}

// upTo returns the uses of at most so many units.
func (u Uses) upTo(most uint32) Uses {
	kept := Uses{}
	for units, times := range u {
		if units <= most {
			kept[units] = times
		}
	}
	return kept
}

// Quantile returns the least number of units that a share of all uses does not exceed.
func (u Uses) Quantile(share float64) uint32 {
	var (
		sum  = u.Sum()
		seen int64
		last uint32
	)
	for _, units := range slices.Sorted(maps.Keys(u)) {
		last = units
		if seen += u[units]; float64(seen) >= share*float64(sum) {
			break
		}
	}
	return last
}

// Distribution sums the uses up.
func (u Uses) Distribution() Distribution {
	return Distribution{
		Periods: u.Sum(), P50: u.Quantile(0.5), P90: u.Quantile(0.9), P99: u.Quantile(0.99),
		P999: u.Quantile(0.999), Max: u.Quantile(1),
	}
}
