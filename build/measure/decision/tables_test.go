package decision

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTargets(t *testing.T) {
	header := measured{Name: caseHeader, Title: "header", Workers: 1}
	for _, ratio := range []float64{1.3, 1.33, 1.9} {
		header.Visits = append(header.Visits, visit{BaseUs: 40, TestUs: 40 * ratio, Ratio: ratio})
	}
	f := figures{Cases: []measured{header}, Loads: []loaded{{Name: loadOurs, BlockedMs: []float64{1301}, ChangedMs: []float64{30}, Grown: []uint64{95_000_000}}}}
	targets := f.targets()
	require.Contains(t, targets, "one window, of no filter's | 0.330 | 0.330 | met |")
	require.Contains(t, targets, "| main thread blocked by a new binary | 1300 ms | 1301 ms | **missed** |")
	require.Contains(t, targets, "empty table | 95 MB | 95 MB | met |")
	require.Contains(t, targets, "| a denied request, of an allowed one, with an upstream | 1.000 | – | not measured |")
	require.Contains(t, targets, "at worst | 0 | 0 | met |")
	require.Contains(t, f.cases(), "| header | +0.33 (+0.30 … +0.90) | 13.2 |")
	require.Empty(t, f.others())
	require.NotContains(t, figures{}.targets(), "met |", "what was not measured is not met")
}
