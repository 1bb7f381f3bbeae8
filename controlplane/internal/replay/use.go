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
	d := Distribution{
		Periods: u.Sum(), P50: u.Quantile(0.5), P90: u.Quantile(0.9), P99: u.Quantile(0.99),
		P999: u.Quantile(0.999), Max: u.Quantile(1), Bins: []UseBin{},
	}
	for _, units := range slices.Sorted(maps.Keys(u)) {
		from, to := binOf(units)
		if n := len(d.Bins); n == 0 || d.Bins[n-1].From != from {
			d.Bins = append(d.Bins, UseBin{From: from, To: to})
		}
		d.Bins[len(d.Bins)-1].Periods += u[units]
	}
	return d
}

// binOf returns the bin of a number: 1, 2 to 4, 5 to 9, 10 to 19, and so on.
func binOf(units uint32) (from, to uint32) {
	edges := [...]uint64{1, 2, 5, 10}
	for scale := uint64(1); ; scale *= 10 {
		for i := range edges[:3] {
			if next := edges[i+1] * scale; uint64(units) < next {
				return uint32(edges[i] * scale), uint32(min(next-1, 1<<32-1))
			}
		}
	}
}
