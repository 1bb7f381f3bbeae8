package decision

import (
	"fmt"
	"math"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// clusterFigures are what docs/cluster-cost.json holds.
type clusterFigures struct {
	Cores     int          `json:"cores"`
	Processor string       `json:"processor"`
	Envoy     string       `json:"envoy"`
	Rounds    int          `json:"rounds"`
	Minutes   float64      `json:"minutes"`
	Busy      float64      `json:"busy"` // share of the machine that was busy on the whole
	Shares    []sharedCase `json:"shares"`
	Core      []coreCase   `json:"core"`
	Used      []usedLimit  `json:"used"`
}

// sharedCase is a case of a fleet; the turns of one place were taken in one round.
type sharedCase struct {
	Name  string            `json:"name"`
	Title string            `json:"title"`
	Sides map[string][]turn `json:"sides"`
}

const clusterPage = "cluster"

// ClusterFigures reads the figures beside docs/cluster.md.
func ClusterFigures(docs string) (page.Figures, error) {
	var f clusterFigures
	err := page.Read(docs, clusterPage, "cost", &f)
	return f.page(), err
}

func (f clusterFigures) page() page.Figures {
	return page.Figures{Page: clusterPage, Part: "cost", Raw: f, Sections: map[string]string{
		"cost-machine": f.machine(), "cost-bars": f.bars(), "cost-shares": f.shares(),
	}}
}

func (f clusterFigures) machine() string {
	if f.Rounds == 0 {
		return "Not measured yet.\n"
	}
	return fmt.Sprintf("Envoy %s, %d of them with one worker each, on %s of an %s, in %.0f minutes; %s.\n",
		f.Envoy, proxies, page.Count(f.Cores, "core"), f.Processor, f.Minutes, page.Count(f.Rounds, "round"))
}

func (t turn) total() float64 { return t.EnvoyUs + t.ServiceUs + t.RedisUs }

// each lists a figure of every turn of a side.
func (s sharedCase) each(side string, of func(turn) float64) (list []float64) {
	for _, t := range s.Sides[side] {
		list = append(list, of(t))
	}
	return list
}

func (s sharedCase) median(side string, of func(turn) float64) float64 {
	return sample.Median(s.each(side, of))
}

// added is what a side adds to a bare Envoy: the median of the rounds.
func (s sharedCase) added(side string) float64 {
	return s.over(side, sideBare, turn.total)
}

// over is how much a figure of a side is above that of another one.
func (s sharedCase) over(side, other string, of func(turn) float64) float64 {
	list, others := s.each(side, of), s.each(other, of)
	if len(list) != len(others) {
		return math.NaN()
	}
	for i := range list {
		list[i] -= others[i]
	}
	return sample.Median(list)
}

func (f clusterFigures) find(name string) sharedCase {
	for _, s := range f.Shares {
		if s.Name == name {
			return s
		}
	}
	return sharedCase{}
}

func (f clusterFigures) core(store string, of func(coreRun) float64) float64 {
	var list []float64
	for _, c := range f.Core {
		if c.Name == store {
			for _, r := range c.Runs {
				list = append(list, of(r))
			}
		}
	}
	return sample.Median(list)
}

// bars is the table of what limits over all Envoys are held to.
func (f clusterFigures) bars() string {
	beside := func(name string) float64 { s := f.find(name); return s.added(sideLeased) / s.added(sideAsked) }
	rate := func(r coreRun) float64 { return r.Rate }
	perCPU := func(r coreRun) float64 { return 1e6 / r.ServiceUs }
	const fresh = "every request a fresh key, CPU added over all processes, of envoyproxy/ratelimit's, "
	var list []target
	for _, one := range shares() {
		if one.draw != nil {
			continue
		}
		s := f.find(one.name)
		list = append(list,
			target{what: one.title + ": CPU added, of a `scope: proxy` rule's", bound: 1.15, format: "%.2f", measured: s.added(sideLeased) / s.added(sideProxy)},
			target{what: "the same: requests that ask", bound: 2, format: "%.2f %%", measured: 100 * s.median(sideLeased, func(t turn) float64 { return t.Asks })},
			target{what: "the same: p99 above it", bound: 0.1, format: "%.3f ms", measured: s.over(sideLeased, sideProxy, func(t turn) float64 { return t.P99Us }) / 1e3})
	}
	list = append(list, []target{
		{what: fresh + "at low load", bound: 0.9, format: "%.2f", measured: beside(caseFresh)},
		{what: fresh + "saturated", bound: 0.6, format: "%.2f", measured: beside(caseSaturated)},
		{what: "10,000 clients (Zipf 1.1), 100/min each, 2,000/s: the same", bound: 0.5, format: "%.2f", measured: beside(caseClients)},
		{what: "one quota service on one core, store in memory", bound: 60_000, format: "%.0f asks/s", measured: f.core(storeMemory, rate), atLeast: true},
		{what: "the same, Redis", bound: 60_000, format: "%.0f asks/s", measured: f.core(storeRedis, rate), atLeast: true},
		{what: "the same, Redis, in a second of the service's CPU", bound: 60_000, format: "%.0f asks", measured: f.core(storeRedis, perCPU), atLeast: true},
	}...)
	for _, u := range f.Used {
		list = append(list, target{
			what:  fmt.Sprintf("limit used, %s, %s, asked for %.2f times", u.Limit, u.Pattern, u.Demand),
			bound: 99, format: "%.1f %%", measured: 100 * u.Used / min(u.Demand, 1), atLeast: true,
		})
	}
	var rows []string
	for _, t := range list {
		sign := "≤ "
		if t.atLeast {
			sign = "≥ "
		}
		rows = append(rows, t.row(sign))
	}
	return page.Table("what | bar | measured | ", rows...)
}

var sideTitles = map[string]string{
	sideBare: "no filter", sideAgain: "no filter, again", sideProxy: "`scope: proxy`", sideLeased: "`scope: cluster`", sideAsked: "envoyproxy/ratelimit and Redis",
}

// shares is the table of all sides of all cases.
func (f clusterFigures) shares() string {
	var rows []string
	for _, s := range f.Shares {
		for _, name := range []string{sideBare, sideAgain, sideProxy, sideAsked, sideLeased} {
			if len(s.Sides[name]) == 0 {
				continue
			}
			m := func(of func(turn) float64) float64 { return s.median(name, of) }
			rows = append(rows, fmt.Sprintf("%s | %s | %.0f | %.1f | %.1f | %.1f | %+.1f | %.0f | %.0f | %.1f | %.2f", s.Title, sideTitles[name],
				m(func(t turn) float64 { return t.Rate }), m(func(t turn) float64 { return t.EnvoyUs }), m(func(t turn) float64 { return t.ServiceUs }),
				m(func(t turn) float64 { return t.RedisUs }), s.added(name), m(func(t turn) float64 { return t.P50Us }), m(func(t turn) float64 { return t.P99Us }),
				100*m(func(t turn) float64 { return t.Denied }), 100*m(func(t turn) float64 { return t.Asks })))
		}
	}
	for _, c := range f.Core {
		rows = append(rows, fmt.Sprintf("one service on one core, %s | %d streams | %.0f | | %.1f | %.1f | | | | 0 | 100", c.Name, coreStreams,
			f.core(c.Name, func(r coreRun) float64 { return r.Rate }), f.core(c.Name, func(r coreRun) float64 { return r.ServiceUs }),
			f.core(c.Name, func(r coreRun) float64 { return r.RedisUs })))
	}
	return page.Table("case | | reached a second | Envoys, µs | services, µs | Redis, µs | added, µs | p50, µs | p99, µs | denied, % | asks, %", rows...)
}
