package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	for name, pattern := range map[string]struct {
		which Pattern
		used  float64
	}{"even": {Even, 0.99}, "90-10": {NinetyTen, 0.99}, "moving": {Moving, 0.99}, "bursts": {Bursts, 0.93}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []Config{
				{Limit: "10/1s", PerSecond: 20, LastNs: 60 * second},
				{Limit: "100/1s", PerSecond: 200, LastNs: 20 * second},
				{Limit: "1000/1s", PerSecond: 2000, LastNs: 5 * second},
				{Limit: "10000/1s", PerSecond: 20000, LastNs: 2 * second},
				{Limit: "100/1m", PerSecond: 3.4, LastNs: 600 * second},
				{Limit: "1000/1m", PerSecond: 34, Proxies: 100, LastNs: 120 * second},
			} {
				if c.Proxies == 0 {
					c.Proxies = 3
				}
				c.Pattern, c.TripNs, c.Seed, c.Workers = pattern.which, ms, 1, 4
				r := Run(t, c)
				t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
					c.Limit, c.Proxies, 100*r.Used(), float64(r.Asks)/float64(r.Requests), 100*r.Waited(), float64(r.WaitP99)/1e6)
				require.LessOrEqual(t, r.Over, 0, c.Limit)
				require.GreaterOrEqual(t, r.Used(), pattern.used, c.Limit)
				require.Zero(t, r.Alone, "decided without the service")
				require.LessOrEqual(t, r.WaitP99, 3*ms, c.Limit)
			}
		})
	}
}

// Messages that break their streams cost units, never the limit.
func TestAFleetThatLosesMessages(t *testing.T) {
	for seed := range uint64(5) {
		for _, lease := range []string{"auto", "off", "50"} {
			r := Run(t, Config{
				Limit: "500/1s", PerSecond: 1500, Proxies: 5, Workers: 2, Keys: 3, Pattern: Moving, TripNs: 4 * ms, Loss: 0.02,
				LastNs: 3 * second, Lease: lease, Seed: seed,
			})
			require.LessOrEqual(t, r.Over, 0)
			require.Greater(t, r.Used(), 0.5)
		}
	}
}
