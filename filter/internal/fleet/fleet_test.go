package fleet

import (
	"cmp"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

var long = flag.Bool("long", false, "longer runs")

const (
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// situation is how demand comes and messages go.
type situation struct {
	name string
	set  func(c *Config)
	used float64 // at least, of the limit
	lost bool    // messages are lost: the service may be silent for a while
}

var situations = []situation{
	{"even", func(c *Config) { c.Pattern = Even }, 0.99, false},
	{"90-10", func(c *Config) { c.Pattern = NinetyTen }, 0.99, false},
	{"Zipf keys", func(c *Config) { c.Pattern, c.Keys, c.PerSecond, c.LastNs = Even, 100, 3*c.PerSecond, c.LastNs/4 }, 0.99, false},
	{"moving", func(c *Config) { c.Pattern = Moving }, 0.99, false},
	{"bursts", func(c *Config) { c.Pattern = Bursts }, 0.88, false},
	{"idle proxies", func(c *Config) { c.Pattern = Idle }, 0.99, false},
	{"slow network", func(c *Config) { c.Pattern, c.TripNs = Even, 30*ms }, 0.99, false},
	{"lost messages", func(c *Config) { c.Pattern, c.Loss = Even, 0.01 }, 0.8, true},
}

// loads have twice the demand that their limit admits. Long ones are more, and last longer.
func loads() []Config {
	list := []Config{
		{Limit: "10/1s", PerSecond: 20, LastNs: 30 * second},
		{Limit: "100/1s", PerSecond: 200, LastNs: 10 * second},
		{Limit: "1000/1s", PerSecond: 2000, LastNs: 3 * second},
		{Limit: "10000/1s", PerSecond: 20000, LastNs: second},
		{Limit: "100/1m", PerSecond: 3.4, LastNs: 10 * minute},
		{Limit: "1000/1m", PerSecond: 34, Proxies: 100, LastNs: 2 * minute},
		{Limit: "10000/1h", PerSecond: 5.6, Workers: 1, LastNs: hour},
		{Limit: "10000/1d", PerSecond: 0.23, Workers: 1, LastNs: day},
	}
	if testing.Short() {
		return list[:1]
	}
	if !*long {
		return list
	}
	for i := range list {
		if list[i].LastNs < hour {
			list[i].LastNs *= 10
		}
	}
	return append(list, Config{Limit: "100/1d", PerSecond: 0.0023, Workers: 1, LastNs: day}, Config{Limit: "100000/1d", PerSecond: 2.3, Workers: 1, LastNs: day})
}

// run lets a fleet live through a load.
func (s *situation) run(t *testing.T, c Config) Result {
	c.Proxies, c.Workers = cmp.Or(c.Proxies, 3), cmp.Or(c.Workers, 4)
	c.TripNs, c.Seed = ms, 1
	s.set(&c)
	r := Run(t, c)
	t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
		c.Limit, c.Proxies, 100*r.Used(), r.AsksEach(), 100*r.Waited(), float64(r.WaitP99)/1e6)
	require.LessOrEqual(t, r.Over, 0, c.Limit)
	if !s.lost {
		require.Zero(t, r.Alone, "decided without the service")
	}
	return r
}

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread, from windows
// of a second to those of a day.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range loads() {
				r := s.run(t, c)
				require.GreaterOrEqual(t, r.Used(), s.used, c.Limit)
				if !s.lost {
					require.LessOrEqual(t, r.WaitP99, 4*r.TripNs, c.Limit)
				}
			}
		})
	}
}

// Where the limit suffices, a busy key asks once in a hundred requests, also shortly
// before its window ends.
func TestAFleetBelowItsLimit(t *testing.T) {
	for _, s := range situations[:4] {
		if s.name == "Zipf keys" {
			continue
		}
		r := s.run(t, Config{Limit: "20000/1s", PerSecond: 10000, Workers: 1, LastNs: 3 * second})
		require.Less(t, r.AsksEach(), 0.01, s.name)
		require.Less(t, r.Waited(), 0.01, s.name)
		require.Greater(t, r.Used(), 0.99, s.name)
	}
}

// Tenants whose tokens say limits of their own use them, and never more, though there are
// more numbers than a stream has room for definitions.
func TestAFleetWhoseRequestsSayTheirLimits(t *testing.T) {
	for _, c := range []Config{
		{Pattern: Even}, {Pattern: Moving}, {Pattern: Even, Lease: "off"}, {Pattern: Moving, Loss: 0.01},
	} {
		c.Limit, c.Said, c.Keys, c.PerSecond, c.LastNs = "2/1s", 1, 3000, 4000, 3*second
		c.Proxies, c.Workers, c.TripNs, c.Seed = 3, 2, 2*ms, 1
		r := Run(t, c)
		t.Logf("%.2f %% used, %.3f asks a request", 100*r.Used(), r.AsksEach())
		require.LessOrEqual(t, r.Over, 0)
		require.Greater(t, r.Used(), map[bool]float64{true: 0.8, false: 0.98}[c.Loss > 0])
	}
}
