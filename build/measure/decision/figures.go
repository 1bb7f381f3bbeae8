package decision

import (
	"cmp"
	"math"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// figures are all that one run found: what docs/performance.json holds.
type figures struct {
	Cores     int        `json:"cores"`
	Processor string     `json:"processor"`
	Envoy     string     `json:"envoy"`
	Rounds    int        `json:"rounds"`
	Pairs     int        `json:"pairs"`
	TurnMs    float64    `json:"turn_ms"`
	Rate      float64    `json:"latency_rate"` // requests a second while latency was measured
	Cases     []measured `json:"cases"`
	Loads     []loaded   `json:"loads"`
}

// measured is one case, measured in each round in a new Envoy.
type measured struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Workers int     `json:"workers"`
	Direct  bool    `json:"direct,omitempty"` // without an upstream, on both sides
	Visits  []visit `json:"visits"`
}

// visit is what one Envoy took. Base is the listener without the filter, test the
// one with it.
type visit struct {
	BaseUs    float64 `json:"base_us"` // CPU of Envoy for a request, median of the turns
	TestUs    float64 `json:"test_us"`
	Ratio     float64 `json:"ratio"` // median of test / base over pairs of successive turns
	RatioLow  float64 `json:"ratio_low"`
	RatioHigh float64 `json:"ratio_high"` // quartiles of the same
	Busy      float64 `json:"busy"`       // share of a core that Envoy took while the test side was loaded
	Foreign   float64 `json:"foreign"`    // share of the machine that others took meanwhile

	ServiceUs float64 `json:"service_us,omitempty"` // CPU of the other processes for a request
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

// loaded is what it took an Envoy to load a module, in each round.
type loaded struct {
	Name      string    `json:"name"`
	Title     string    `json:"title"`
	BlockedMs []float64 `json:"blocked_ms"`
	ChangedMs []float64 `json:"changed_ms,omitempty"`
	Grown     []uint64  `json:"grown"` // bytes
}

// Figures reads the figures beside docs/performance.md.
func Figures(docs string) (page.Figures, error) {
	var f figures
	if err := page.Read(docs, pageName, "", &f); err != nil {
		return page.Figures{}, err
	}
	return f.page()
}

const pageName = "performance"

func (f figures) page() (page.Figures, error) {
	picture, err := f.picture()
	return page.Figures{
		Page: pageName, Raw: f, Pictures: map[string][]byte{pageName + ".svg": picture},
		Sections: map[string]string{
			"machine": f.machine(), "targets": f.targets(), "cases": f.cases(), "others": f.others(), "loads": f.loads(),
		},
	}, err
}

// each lists a figure of every visit of the case.
func (m measured) each(of func(visit) float64) (list []float64) {
	for _, v := range m.Visits {
		list = append(list, of(v))
	}
	return list
}

func (m measured) median(of func(visit) float64) float64 { return sample.Median(m.each(of)) }

// added is the share of the CPU of no filter that the case adds to it.
func (m measured) added() sample.Spread {
	return sample.SpreadOf(m.each(func(v visit) float64 { return round(v.Ratio - 1) }))
}

// find returns the case of that name, or an empty one, whose figures are NaN.
func (f figures) find(name string) measured {
	for _, m := range f.Cases {
		if m.Name == name {
			return m
		}
	}
	return measured{}
}

// all lists a figure of every visit of the cases that are chosen.
func (f figures) all(chosen func(measured) bool, of func(visit) float64) (list []float64) {
	for _, m := range f.Cases {
		if chosen(m) {
			list = append(list, m.each(of)...)
		}
	}
	return list
}

func anyCase(measured) bool { return true }

// plain says whether the case is measured with one worker and an upstream.
func (m measured) plain() bool { return cmp.Or(m.Workers, 1) == 1 && !m.Direct }

func (l loaded) grownMiB() (list []float64) {
	for _, n := range l.Grown {
		list = append(list, float64(n)/(1<<20))
	}
	return list
}

// round keeps three places, which is more than can be told apart.
func round(f float64) float64 { return math.Round(f*1e3) / 1e3 }
