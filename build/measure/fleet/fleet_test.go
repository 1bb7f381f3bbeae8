package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A row of the table is the worst of a pattern's runs; one pattern too many has no mark.
func TestTable(t *testing.T) {
	f := figures{{
		{Demand: "even", Limit: "10/1s", Proxies: 3, TripMs: 1, Used: 0.991, AsksPerRequest: 0.5, Paused: 0.25, PauseP99Ms: 1.5},
		{Demand: "even", Limit: "10/1m", Proxies: 100, TripMs: 1, Over: 2, Used: 1, AsksPerRequest: 0.005, Paused: 0.5, PauseP99Ms: 1},
	}}
	require.Contains(t, f.table(), "| even | 2 | 99.1 % | 0.005–0.50 | 50.0 % | 1.5 ms | 1.0 ms |\n")
	p, err := f.page()
	require.NoError(t, err)
	require.Contains(t, string(p.Pictures["fleet-asks.svg"]), "10/1m, 100 proxies")
	for len(f) <= len(marks) {
		f = append(f, f[0])
	}
	_, err = f.page()
	require.ErrorContains(t, err, "more patterns of demand than marks")
}
