// Package faults makes the table of faults of docs/cluster.md.
//
// Its invariant: it measures nothing. The test TestFaults of package e2e lets the
// faults happen, and writes the figures.
package faults

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

// figures are what docs/cluster-faults.json holds.
type figures struct {
	Processors int    `json:"processors"`
	Envoy      string `json:"envoy"`
	Redis      string `json:"redis"`
	TimeoutMs  int    `json:"timeout_ms"`
	Rows       []row  `json:"rows"`
}

// row is what clients saw of a fault, in all its runs together.
type row struct {
	Fault    string  `json:"fault"`
	Runs     int     `json:"runs"`
	Requests int     `json:"requests"`
	Rate     float64 `json:"rate"`
	Admitted int     `json:"admitted"`
	Failed   int     `json:"failed"`
	Ended    int     `json:"ended,omitempty"`
	Over     int     `json:"over"`
	MayOver  int     `json:"may_over"`
	Local    int     `json:"local"`
	MayLocal int     `json:"may_local"`
	WaitMs   float64 `json:"wait_ms"`
	TookMs   float64 `json:"took_ms"`
}

const pageName = "cluster"

// Figures reads the figures beside docs/cluster.md.
func Figures(docs string) (page.Figures, error) {
	var f figures
	err := page.Read(docs, pageName, "faults", &f)
	return f.page(), err
}

func (f figures) page() page.Figures {
	var lines []string
	for i := range f.Rows {
		lines = append(lines, f.Rows[i].line())
	}
	text := fmt.Sprintf("Three Envoys %s, two quota services and Redis %s on %s; the timeout is %d ms.\n\n%s",
		f.Envoy, f.Redis, page.Count(f.Processors, "processor"), f.TimeoutMs,
		page.Table("fault | runs | requests | a second | failed | over: `deny` | over: `local` | longest wait, ms | as a client sees it, ms", lines...))
	return page.Figures{Page: pageName, Part: "faults", Raw: f, Sections: map[string]string{"faults": text}}
}

func (r *row) line() string {
	failed := fmt.Sprint(r.Failed)
	if r.Ended > 0 {
		failed += fmt.Sprintf(", and %d that it had", r.Ended)
	}
	return strings.Join([]string{
		r.Fault, fmt.Sprint(r.Runs), fmt.Sprint(r.Requests), fmt.Sprintf("%.0f", r.Rate), failed,
		over(r.Over, r.MayOver), over(r.Local, r.MayLocal), fmt.Sprintf("%.0f", r.WaitMs), fmt.Sprintf("%.0f", r.TookMs),
	}, " | ")
}

// over is by how much a limit was passed, and how much the promise allows.
func over(units, may int) string {
	switch {
	case units > may:
		return fmt.Sprintf("**%d**, promised ≤ %d", units, may)
	case may > 0:
		return fmt.Sprintf("%d of ≤ %d", units, may)
	}
	return fmt.Sprint(units)
}
