package fleet

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

var long = flag.Bool("long", false, "longer runs, and a row for each situation")

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

// figures are what one run has shown.
type figures struct {
	over               int     // the most that a window admitted beyond its limit
	used               float64 // of what exact limiting admits
	asks, paused       float64 // for a request; of the requests
	pauseP99Ms, tripMs float64
}

func (s *situation) run(t *testing.T, c Config) figures {
	if c.Proxies == 0 {
		c.Proxies = 3
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	c.TripNs, c.Seed = ms, 1
	s.set(&c)
	r := Run(t, c)
	f := figures{
		over: max(r.Over, 0), used: r.Used(), asks: float64(r.Asks) / float64(r.Requests), paused: r.Waited(),
		pauseP99Ms: float64(r.WaitP99) / 1e6, tripMs: float64(c.TripNs) / 1e6,
	}
	t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
		c.Limit, c.Proxies, 100*f.used, f.asks, 100*f.paused, f.pauseP99Ms)
	require.Zero(t, f.over, c.Limit)
	require.GreaterOrEqual(t, f.used, s.used, c.Limit)
	if !s.lost {
		require.Zero(t, r.Alone, "decided without the service")
		require.LessOrEqual(t, f.pauseP99Ms, 4*f.tripMs, c.Limit)
	}
	return f
}

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread, from windows
// of a second to those of a day.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			worst := figures{used: 1}
			fewest := 1.0
			for _, c := range loads() {
				f := s.run(t, c)
				fewest = min(fewest, f.asks)
				worst = figures{
					max(worst.over, f.over), min(worst.used, f.used), max(worst.asks, f.asks), max(worst.paused, f.paused),
					max(worst.pauseP99Ms, f.pauseP99Ms), f.tripMs,
				}
			}
			t.Logf("| %s | %d | %.1f %% | %.3f–%.2f | %.1f %% | %.1f ms | %.1f ms |", s.name, worst.over,
				100*worst.used, fewest, worst.asks, 100*worst.paused, worst.pauseP99Ms, worst.tripMs)
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
		c := Config{Limit: "20000/1s", PerSecond: 10000, Proxies: 3, Workers: 1, LastNs: 3 * second, TripNs: ms, Seed: 1}
		s.set(&c)
		r := Run(t, c)
		asks := float64(r.Asks) / float64(r.Requests)
		t.Logf("%s: %.2f %% asks, %.2f %% waited, %.2f %% used", s.name, 100*asks, 100*r.Waited(), 100*r.Used())
		require.Less(t, asks, 0.01, s.name)
		require.Less(t, r.Waited(), 0.01, s.name)
		require.Greater(t, r.Used(), 0.99, s.name)
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

// Tenants whose tokens say limits of their own use them, and never more, though there are
// more numbers than a stream has room for definitions.
func TestAFleetWhoseRequestsSayTheirLimits(t *testing.T) {
	for _, c := range []Config{
		{Pattern: Even}, {Pattern: Moving}, {Pattern: Even, Lease: "off"}, {Pattern: Moving, Loss: 0.01},
	} {
		c.Limit, c.Said, c.Keys, c.PerSecond, c.LastNs = "2/1s", 1, 3000, 4000, 3*second
		c.Proxies, c.Workers, c.TripNs, c.Seed = 3, 2, 2*ms, 1
		r := Run(t, c)
		t.Logf("%.2f %% used, %.3f asks a request", 100*r.Used(), float64(r.Asks)/float64(r.Requests))
		require.LessOrEqual(t, r.Over, 0)
		require.Greater(t, r.Used(), map[bool]float64{true: 0.8, false: 0.98}[c.Loss > 0])
	}
}
