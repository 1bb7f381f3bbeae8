package decision

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A bound is met, missed, or not measured: what was not measured is not met.
func TestTargets(t *testing.T) {
	header := measured{subject: subject{name: caseHeader, title: "header"}}
	for _, ratio := range []float64{1.3, 1.33, 1.9} {
		header.visits = append(header.visits, visit{baseUs: 40, testUs: 40 * ratio, ratio: ratio})
	}
	floor := measured{subject: subject{name: caseFloor}, visits: []visit{{ratio: 1.25}}}
	f := figures{cases: []measured{header, floor}, loads: []loaded{{load: load{name: loadOurs}, blockedMs: []float64{1301}}}}
	targets := f.targets()
	require.Contains(t, targets, "one window, of no filter's | ≤ 0.330 | 0.330 | met |")
	require.Contains(t, targets, "the same rule, of the floor's | ≤ 1.40 | 1.32 | met |")
	require.Contains(t, targets, "by a new binary | ≤ 400 ms | 1301 ms | **missed** |")
	require.Contains(t, targets, "with an upstream | ≤ 1.000 | – | not measured |")
	require.Contains(t, targets, "at worst | ≤ 0 | 0 | met |")
	require.Contains(t, f.caseTable(), "| header | +0.33 (+0.30 … +0.90) | 13.2 |")
	require.NotContains(t, figures{}.targets(), "met |")
	require.Contains(t, target{what: "a", bound: 2, format: "%.0f", measured: 3, atLeast: true}.row(), "≥ 2 | 3 | met")
}
