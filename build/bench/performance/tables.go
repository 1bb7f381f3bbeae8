package performance

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/report"
	"github.com/sluice-ratelimit/sluice/build/sample"
)

// Machine says what was measured on, and how often.
func (r Run) Machine() string {
	var foreign []float64
	for _, c := range r.Cases {
		for _, v := range c.Visits {
			foreign = append(foreign, v.Foreign)
		}
	}
	return fmt.Sprintf("Envoy %s on %s of an %s; %s of %s of turns of %.0f ms. A request without a\nfilter took %.1f µs of Envoy's CPU. Others took %.0f %% of the machine meanwhile, %.0f %% at worst.\n",
		r.Envoy, report.Count(r.Cores, "core"), r.Processor, report.Count(r.Rounds, "round"), report.Count(r.Pairs, "pair"), r.TurnMs,
		r.plainUs(), 100*sample.Median(foreign), 100*sample.Quantile(foreign, 1))
}

// CaseTable is the table of all cases.
func (r Run) CaseTable() string {
	var b strings.Builder
	b.WriteString("| case | CPU added, of no filter's | µs | p50, µs | p99, µs | RSS, MiB |\n|---|---|---|---|---|---|\n")
	for _, c := range r.Cases {
		if len(c.Visits) == 0 {
			fmt.Fprintf(&b, "| %s | %s | | | | |\n", c.Title, c.Why)
			continue
		}
		added := c.added()
		us := c.spread(func(v Visit) float64 { return (v.Ratio - 1) * v.BaseUs }).Median
		pair := func(test, base func(Visit) float64) string {
			return fmt.Sprintf("%.0f (%.0f)", c.spread(test).Median, c.spread(base).Median)
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f | %s | %s | %.0f |\n", c.Title, shares(added), us,
			pair(func(v Visit) float64 { return v.TestP50Us }, func(v Visit) float64 { return v.BaseP50Us }),
			pair(func(v Visit) float64 { return v.TestP99Us }, func(v Visit) float64 { return v.BaseP99Us }),
			c.spread(func(v Visit) float64 { return float64(v.RSS) / (1 << 20) }).Median)
	}
	return b.String()
}

// shares writes a spread of shares: the median, and the least and the most of
// the rounds.
func shares(s sample.Spread) string {
	return fmt.Sprintf("%+.2f (%+.2f … %+.2f)", s.Median, s.Least, s.Most)
}

// Others says what the processes beside Envoy took, where there were some.
func (r Run) Others() string {
	var b strings.Builder
	for _, c := range r.Cases {
		if len(c.Visits) == 0 || c.Visits[0].ServiceUs == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s: Envoy %.0f µs a request, the service %.0f µs, Redis %.0f µs.\n", c.Title,
			c.spread(func(v Visit) float64 { return v.TestUs }).Median,
			c.spread(func(v Visit) float64 { return v.ServiceUs }).Median,
			c.spread(func(v Visit) float64 { return v.RedisUs }).Median)
	}
	return b.String()
}

// LoadTable is the table of what loading takes.
func (r Run) LoadTable() string {
	var b strings.Builder
	b.WriteString("| loaded | main thread blocked, ms | by a change of policy, ms | resident memory added, MiB |\n|---|---|---|---|\n")
	for _, l := range r.Loads {
		changed := ""
		if len(l.ChangedMs) > 0 {
			changed = milliseconds(l.ChangedMs)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", l.Title, milliseconds(l.BlockedMs), changed, mebibytes(l.Grown))
	}
	return b.String()
}

func milliseconds(list []float64) string {
	s := sample.SpreadOf(list)
	return fmt.Sprintf("%.0f (%.0f … %.0f)", s.Median, s.Least, s.Most)
}

// Sections are the generated parts of the document, by the names of their
// markers.
func (r Run) Sections() map[string]string {
	return map[string]string{
		"machine": r.Machine(),
		"targets": r.TargetTable(),
		"cases":   r.CaseTable(),
		"others":  r.Others(),
		"loads":   r.LoadTable(),
	}
}

// Fill puts the sections into the document.
func (r Run) Fill(document string) (string, error) {
	return report.Fill(document, "bench", r.Sections())
}
