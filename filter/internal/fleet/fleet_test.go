package fleet

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	figuresFile = flag.String("figures", "", "write what each run has shown to this `file`, as JSON")
)

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

// loads have twice the demand that their limit admits. For figures they last longer.
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
	if *figuresFile == "" {
		return list
	}
	for i := range list {
		if list[i].LastNs < hour {
			list[i].LastNs *= 10
		}
	}
	return append(list, Config{Limit: "100/1d", PerSecond: 0.0023, Workers: 1, LastNs: day}, Config{Limit: "100000/1d", PerSecond: 2.3, Workers: 1, LastNs: day})
}

// figures are what one run has shown, as docs/cluster.md has it.
type figures struct {
	Demand         string  `json:"demand"`
	Limit          string  `json:"limit"`
	Proxies        int     `json:"proxies"`
	Keys           int     `json:"keys"`
	TripMs         float64 `json:"trip_ms"`
	Requests       int     `json:"requests"`
	Admitted       int     `json:"admitted"`
	Over           int     `json:"over"` // the most that a window admitted beyond its limit
	Used           float64 `json:"used"` // of what exact limiting admits
	AsksPerRequest float64 `json:"asks_per_request"`
	Paused         float64 `json:"paused"` // of the requests
	PauseP50Ms     float64 `json:"pause_p50_ms"`
	PauseP99Ms     float64 `json:"pause_p99_ms"`
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
		Demand: s.name, Limit: c.Limit, Proxies: c.Proxies, Keys: max(c.Keys, 1), TripMs: float64(c.TripNs) / 1e6,
		Requests: r.Requests, Admitted: r.Admitted, Over: max(r.Over, 0), Used: r.Used(),
		AsksPerRequest: float64(r.Asks) / float64(r.Requests), Paused: r.Waited(),
		PauseP50Ms: float64(r.WaitP50) / 1e6, PauseP99Ms: float64(r.WaitP99) / 1e6,
	}
	t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
		c.Limit, c.Proxies, 100*f.Used, f.AsksPerRequest, 100*f.Paused, f.PauseP99Ms)
	require.Zero(t, f.Over, c.Limit)
	require.GreaterOrEqual(t, f.Used, s.used, c.Limit)
	if !s.lost {
		require.Zero(t, r.Alone, "decided without the service")
		require.LessOrEqual(t, f.PauseP99Ms, 4*f.TripMs, c.Limit)
	}
	return f
}

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread, from windows
// of a second to those of a day.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	all := make([][]figures, len(situations))
	t.Cleanup(func() { write(t, all) })
	for i := range situations {
		t.Run(situations[i].name, func(t *testing.T) {
			t.Parallel()
			for _, c := range loads() {
				all[i] = append(all[i], situations[i].run(t, c))
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

func write(t *testing.T, all [][]figures) {
	if *figuresFile == "" {
		return
	}
	b, err := json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*figuresFile, append(b, '\n'), 0o600))
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
