package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Units of the last tenth of a window and of the first tenth of the next are a spike as far as they
// are together beyond the limit.
func TestSpikes(t *testing.T) {
	const tenth = 1_000_000_000
	window := limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: 10 * tenth}
	m := &Set{}
	for _, step := range []struct {
		tenths        float64
		units, excess uint64
	}{
		{0, 9, 0}, // nothing is known of the window before
		{8.9, 9, 0}, {9, 2, 0}, {9.9, 2, 0},
		{10, 1, 0}, {10.5, 1, 1}, {10.9, 2, 2}, {11, 9, 0}, {19, 3, 0},
		{40, 9, 0}, // the window before is another one, in which nothing came
	} {
		now := int64(step.tenths * tenth)
		before := m.BoundarySpikes
		m.CountSpikes([]limit.Window{window}, uint32(step.units), now)
		require.Equal(t, step.excess, m.BoundarySpikes-before, "at %v", step.tenths)
	}
}
