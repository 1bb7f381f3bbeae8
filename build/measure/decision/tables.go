package decision

import (
	"fmt"
	"math"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// machine says what was measured on, and how often.
func (f figures) machine() string {
	foreign := f.all(anyCase, func(v visit) float64 { return 100 * v.Foreign })
	return fmt.Sprintf(`Envoy %s on %s of an %s; %s of %s of turns of %.0f ms. A request without a
filter took %.1f µs of Envoy's CPU. Other processes took %.0f %% of the machine, %.0f %% at worst.
`, f.Envoy, page.Count(f.Cores, "core"), f.Processor, page.Count(f.Rounds, "round"), page.Count(f.Pairs, "pair"), f.TurnMs,
		sample.Median(f.all(measured.plain, func(v visit) float64 { return v.BaseUs })), sample.Median(foreign), sample.Quantile(foreign, 1))
}

// target is a bound that the filter is held to. A figure that was not measured is
// NaN.
type target struct {
	what     string
	bound    float64
	format   string
	measured float64
	atLeast  bool // the bound is from below
}

func (t target) verdict() string {
	switch {
	case math.IsNaN(t.measured):
		return "not measured"
	case t.measured == t.bound || t.measured < t.bound != t.atLeast:
		return "met"
	}
	return "**missed**"
}

// row is its row of a table; sign goes before the bound.
func (t target) row(sign string) string {
	measured := "–"
	if !math.IsNaN(t.measured) {
		measured = fmt.Sprintf(t.format, t.measured)
	}
	return fmt.Sprintf("%s | %s"+t.format+" | %s | %s", t.what, sign, t.bound, measured, t.verdict())
}

// targets is the table of all bounds.
func (f figures) targets() string {
	added := func(name string) float64 { return f.find(name).added().Median }
	var ours loaded
	for _, l := range f.Loads {
		if l.Name == loadOurs {
			ours = l
		}
	}
	over := f.all(anyCase, func(v visit) float64 { return float64(v.Over) })
	var rows []string
	for _, t := range []target{
		{what: "CPU added by a rule keyed by a header with one window, of no filter's", bound: 0.33, format: "%.3f", measured: added(caseHeader)},
		{what: "a denied request, of an allowed one, with an upstream", bound: 1, format: "%.3f", measured: (1 + added(caseDenied)) / (1 + added(caseHeader))},
		{what: "a denied request, of an allowed one, Envoy answering both", bound: 1, format: "%.3f", measured: (1 + added(caseDirectDenied)) / (1 + added(caseDirectAllowed))},
		{what: "memory added, four workers, empty table", bound: 95, format: "%.0f MB", measured: sample.Median(ours.grownMiB()) * (1 << 20) / 1e6},
		{what: "main thread blocked by a new binary", bound: 1300, format: "%.0f ms", measured: sample.Median(ours.BlockedMs)},
		{what: "main thread blocked by a change of a policy of 10 rules", bound: 30, format: "%.0f ms", measured: sample.Median(ours.ChangedMs)},
		{what: "memory of a live key, one fixed window, table at its capacity", bound: 40, format: "%.1f bytes", measured: f.find(caseManyKeys).median(func(v visit) float64 { return v.BytesPerKey })},
		{what: "requests admitted over a limit, at worst", bound: 0, format: "%.0f", measured: sample.Quantile(over, 1)},
	} {
		rows = append(rows, t.row(""))
	}
	return page.Table("what | at most | measured | ", rows...)
}

// cases is the table of all cases.
func (f figures) cases() string {
	var rows []string
	for _, m := range f.Cases {
		s := m.added()
		rows = append(rows, fmt.Sprintf("%s | %+.2f (%+.2f … %+.2f) | %.1f | %.0f (%.0f) | %.0f (%.0f) | %.0f", m.Title, s.Median, s.Min, s.Max,
			m.median(func(v visit) float64 { return (v.Ratio - 1) * v.BaseUs }),
			m.median(func(v visit) float64 { return v.TestP50Us }), m.median(func(v visit) float64 { return v.BaseP50Us }),
			m.median(func(v visit) float64 { return v.TestP99Us }), m.median(func(v visit) float64 { return v.BaseP99Us }),
			m.median(func(v visit) float64 { return float64(v.RSS) / (1 << 20) })))
	}
	return page.Table("case | CPU added, of no filter's | µs | p50, µs | p99, µs | RSS, MiB", rows...)
}

// others says what the processes beside Envoy took, where there were some.
func (f figures) others() string {
	m := f.find(caseService)
	if len(m.Visits) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: Envoy %.0f µs a request, the service %.0f µs, Redis %.0f µs.\n", m.Title,
		m.median(func(v visit) float64 { return v.TestUs }), m.median(func(v visit) float64 { return v.ServiceUs }), m.median(func(v visit) float64 { return v.RedisUs }))
}

// loads is the table of what loading takes.
func (f figures) loads() string {
	ms := func(list []float64) string {
		s := sample.SpreadOf(list)
		return fmt.Sprintf("%.0f (%.0f … %.0f)", s.Median, s.Min, s.Max)
	}
	var rows []string
	for _, l := range f.Loads {
		changed := ""
		if len(l.ChangedMs) > 0 {
			changed = ms(l.ChangedMs)
		}
		rows = append(rows, strings.Join([]string{l.Title, ms(l.BlockedMs), changed, fmt.Sprintf("%.1f", sample.Median(l.grownMiB()))}, " | "))
	}
	return page.Table("loaded | main thread blocked, ms | by a change of policy, ms | resident memory added, MiB", rows...)
}
