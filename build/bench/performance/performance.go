// Package performance is what the benchmark found, and how it is told: the raw
// figures as JSON, and the tables and the picture of docs/performance.md.
//
// Its invariant: what the document says is computed from the JSON beside it by
// this package and nothing else, so that a test can do it again. It must not
// import a package of the product.
package performance

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/build/sample"
)

// Cases that targets are about, by name.
const (
	None          = "none" // nothing before the router, on both sides
	Floor         = "floor"
	Header        = "header"
	Denied        = "denied"
	DirectAllowed = "direct-allowed"
	DirectDenied  = "direct-denied"
	Leased        = "leased"
	ManyKeys      = "keys-100000"
	Ours          = "sluice" // among loads
)

// Run is one run of the benchmark.
type Run struct {
	Cores     int     `json:"cores"`
	Processor string  `json:"processor"`
	Envoy     string  `json:"envoy"`
	Rounds    int     `json:"rounds"`
	Pairs     int     `json:"pairs"`
	TurnMs    float64 `json:"turn_ms"`
	Rate      float64 `json:"latency_rate"` // requests a second while latency was measured
	Cases     []Case  `json:"cases"`
	Loads     []Load  `json:"loads"`
}

// Case is one thing measured beside no filter.
type Case struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Workers int     `json:"workers"`
	Direct  bool    `json:"direct,omitempty"` // without an upstream, on both sides
	Why     string  `json:"why,omitempty"`    // why there are no visits
	Visits  []Visit `json:"visits"`
}

// Visit is one Envoy with a case in it. Base is the listener without the
// filter, Test the one with it.
type Visit struct {
	BaseUs    float64 `json:"base_us"` // CPU of Envoy for a request, median of the turns
	TestUs    float64 `json:"test_us"`
	Ratio     float64 `json:"ratio"`      // median of test / base over pairs of successive turns
	RatioLow  float64 `json:"ratio_low"`  // quartiles of the same
	RatioHigh float64 `json:"ratio_high"` //
	Busy      float64 `json:"busy"`       // of a core, by Envoy, while the test side was loaded
	Foreign   float64 `json:"foreign"`    // share of the machine that others took meanwhile

	ServiceUs float64 `json:"service_us,omitempty"` // CPU of other processes for a request
	RedisUs   float64 `json:"redis_us,omitempty"`

	BaseP50Us float64 `json:"base_p50_us"`
	BaseP99Us float64 `json:"base_p99_us"`
	TestP50Us float64 `json:"test_p50_us"`
	TestP99Us float64 `json:"test_p99_us"`

	RSS         uint64  `json:"rss"` // bytes, at the end
	BytesPerKey float64 `json:"bytes_per_key,omitempty"`
	Admitted    int     `json:"admitted"`
	Denied      int     `json:"denied"`
	Over        int     `json:"over"` // admitted beyond the limit
}

// Load is what it takes an Envoy with four workers to load something.
type Load struct {
	Name      string    `json:"name"`
	Title     string    `json:"title"`
	BlockedMs []float64 `json:"blocked_ms"`
	ChangedMs []float64 `json:"changed_ms,omitempty"`
	Grown     []uint64  `json:"grown"` // bytes
}

// Read reads what Write wrote.
func Read(text []byte) (Run, error) {
	var r Run
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read figures: %w", err)
	}
	return r, nil
}

// Write returns the run as JSON.
func (r Run) Write() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", " ")
	return append(text, '\n'), err
}

// find returns a case that has figures.
func (r Run) find(name string) (Case, bool) {
	i := slices.IndexFunc(r.Cases, func(c Case) bool { return c.Name == name && len(c.Visits) > 0 })
	if i < 0 {
		return Case{}, false
	}
	return r.Cases[i], true
}

func (r Run) load(name string) (Load, bool) {
	i := slices.IndexFunc(r.Loads, func(l Load) bool { return l.Name == name && len(l.Grown) > 0 })
	if i < 0 {
		return Load{}, false
	}
	return r.Loads[i], true
}

// spread is over the visits of a case.
func (c Case) spread(of func(Visit) float64) sample.Spread {
	var list []float64
	for _, v := range c.Visits {
		list = append(list, of(v))
	}
	return sample.SpreadOf(list)
}

// added is the share of the CPU of no filter that a case adds to it, to the
// three places that ratios are given with.
func (c Case) added() sample.Spread {
	return c.spread(func(v Visit) float64 { return math.Round((v.Ratio-1)*1e3) / 1e3 })
}

// plainUs is the CPU of a request that no filter sees, over all visits of one
// worker with an upstream.
func (r Run) plainUs() float64 {
	var list []float64
	for _, c := range r.Cases {
		for _, v := range c.Visits {
			if c.Workers == 1 && !c.Direct {
				list = append(list, v.BaseUs)
			}
		}
	}
	return sample.Median(list)
}
