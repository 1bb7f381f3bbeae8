package decision

import (
	"fmt"
	"math"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// figures are all that one run found.
type figures struct {
	cases []measured
	loads []loaded
}

// measured is one case, measured in each round in a new Envoy.
type measured struct {
	subject
	visits []visit
}

// loaded is what it took an Envoy to load a module, in each round.
type loaded struct {
	load
	blockedMs, changedMs, grownMiB []float64
}

// median is that of a figure of every visit; NaN where there was none.
func (m measured) median(of func(visit) float64) float64 { return m.spread(of).Median }

func (m measured) spread(of func(visit) float64) sample.Spread {
	var list []float64
	for _, v := range m.visits {
		list = append(list, of(v))
	}
	return sample.SpreadOf(list)
}

// added is the share of the CPU of no filter that the case adds to it.
func added(v visit) float64 { return v.ratio - 1 }

// find returns the case of that name, or an empty one, whose figures are NaN.
func (f figures) find(name string) measured {
	for _, m := range f.cases {
		if m.name == name {
			return m
		}
	}
	return measured{}
}

// table is a table of Markdown. Its head and its rows are cells joined by " | ".
func table(head string, rows ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", head, strings.Repeat("---|", strings.Count(head, " | ")+1))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", row)
	}
	return b.String()
}

// target is a bound that the product is held to. A figure that was not measured is
// NaN.
type target struct {
	what     string
	bound    float64
	format   string
	measured float64
	atLeast  bool // the bound is from below
}

// row is its row of a table.
func (t target) row() string {
	sign, measured, verdict := "≤ ", "–", "not measured"
	if t.atLeast {
		sign = "≥ "
	}
	if !math.IsNaN(t.measured) {
		t.measured = math.Round(t.measured*1e3) / 1e3 // more cannot be told apart
		measured, verdict = fmt.Sprintf(t.format, t.measured), "**missed**"
		if t.measured == t.bound || t.measured < t.bound != t.atLeast {
			verdict = "met"
		}
	}
	return fmt.Sprintf("%s | %s"+t.format+" | %s | %s", t.what, sign, t.bound, measured, verdict)
}

func targetTable(list []target) string {
	var rows []string
	for _, t := range list {
		rows = append(rows, t.row())
	}
	return table("what | bar | measured | ", rows...)
}

// targets is the table of all bounds of one Envoy.
func (f figures) targets() string {
	ratio := func(name string) float64 { return f.find(name).median(func(v visit) float64 { return v.ratio }) }
	beside := func(name, floor string) float64 { return (ratio(name) - 1) / (ratio(floor) - 1) }
	var ours loaded
	for _, l := range f.loads {
		if l.name == loadOurs {
			ours = l
		}
	}
	var over []float64
	for _, m := range f.cases {
		over = append(over, m.spread(func(v visit) float64 { return float64(v.over) }).Max)
	}
	return targetTable([]target{
		{what: "CPU added by a rule keyed by a header with one window, of no filter's", bound: 0.33, format: "%.3f", measured: ratio(caseHeader) - 1},
		{what: "CPU added by the same rule, of the floor's", bound: 1.4, format: "%.2f", measured: beside(caseHeader, caseFloor)},
		{what: "CPU added by the same rule with response headers, of their floor's", bound: 1.5, format: "%.2f", measured: beside(caseFields, caseFloorFields)},
		{what: "CPU added by three rules, of the floor's", bound: 1.8, format: "%.2f", measured: beside(caseThreeRules, caseFloor)},
		{what: "a rule with settle to the status, of the rule without", bound: 1.3, format: "%.3f", measured: ratio(caseSettled)},
		{what: "tokens of 500 streamed events, of no filter's CPU", bound: 1.15, format: "%.3f", measured: ratio(caseEvents)},
		{what: "tokens of 1 MB of JSON, of no filter's CPU", bound: 1.2, format: "%.3f", measured: ratio(caseJSON)},
		{what: "a denied request, of an allowed one, with an upstream", bound: 1, format: "%.3f", measured: ratio(caseDenied) / ratio(caseHeader)},
		{what: "a denied request, of an allowed one, Envoy answering both", bound: 1, format: "%.3f", measured: ratio(caseDirectDenied) / ratio(caseDirectAllowed)},
		{what: "memory added, four workers, empty table", bound: 45, format: "%.0f MB", measured: sample.Median(ours.grownMiB) * (1 << 20) / 1e6},
		{what: "main thread blocked by a new binary", bound: 400, format: "%.0f ms", measured: sample.Median(ours.blockedMs)},
		{what: "main thread blocked by a change of a policy of 10 rules", bound: 30, format: "%.0f ms", measured: sample.Median(ours.changedMs)},
		{what: "memory of a live key, one fixed window, table at its capacity", bound: 40, format: "%.1f bytes", measured: f.find(caseManyKeys).median(func(v visit) float64 { return v.bytesPerKey })},
		{what: "requests admitted over a limit, at worst", bound: 0, format: "%.0f", measured: sample.Quantile(over, 1)},
	})
}

// caseTable is the table of all cases.
func (f figures) caseTable() string {
	var rows []string
	for _, m := range f.cases {
		s := m.spread(added)
		rows = append(rows, fmt.Sprintf("%s | %+.2f (%+.2f … %+.2f) | %.1f | %.0f (%.0f) | %.0f (%.0f) | %.0f", m.title, s.Median, s.Min, s.Max,
			m.median(func(v visit) float64 { return (v.ratio - 1) * v.baseUs }),
			m.median(func(v visit) float64 { return v.test.p50 }), m.median(func(v visit) float64 { return v.base.p50 }),
			m.median(func(v visit) float64 { return v.test.p99 }), m.median(func(v visit) float64 { return v.base.p99 }),
			m.median(func(v visit) float64 { return float64(v.rss) / (1 << 20) })))
	}
	return table("case | CPU added, of no filter's | µs | p50, µs | p99, µs | RSS, MiB", rows...)
}

// others says what the processes beside Envoy took, where there were some.
func (f figures) others() string {
	m := f.find(caseService)
	if len(m.visits) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: Envoy %.0f µs a request, the service %.0f µs, Redis %.0f µs.\n", m.title,
		m.median(func(v visit) float64 { return v.testUs }), m.median(func(v visit) float64 { return v.serviceUs }), m.median(func(v visit) float64 { return v.redisUs }))
}

// loadTable is the table of what loading takes.
func (f figures) loadTable() string {
	var rows []string
	for _, l := range f.loads {
		ms := func(list []float64) string {
			if len(list) == 0 {
				return ""
			}
			s := sample.SpreadOf(list)
			return fmt.Sprintf("%.0f (%.0f … %.0f)", s.Median, s.Min, s.Max)
		}
		rows = append(rows, fmt.Sprintf("%s | %s | %s | %.1f", l.title, ms(l.blockedMs), ms(l.changedMs), sample.Median(l.grownMiB)))
	}
	return table("loaded | main thread blocked, ms | by a change of policy, ms | resident memory added, MiB", rows...)
}
