// Package fleet writes what the model of many proxies under one limit has shown into
// docs/cluster.md.
//
// Its invariant: it measures nothing itself. The figures are those of the tests of
// filter/internal/fleet, in virtual time, so the same tree gives the same page.
package fleet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

const pageName = "cluster"

// figures are the runs of each pattern of demand: what docs/cluster-fleet.json holds.
type figures [][]run

// run is what one run of the model has shown.
type run struct {
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

// Command is the subcommand.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "fleet",
		Short: "What the model of many proxies under one limit shows: into docs/cluster.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := measure(cmd.Context())
			if err != nil {
				return err
			}
			p, err := f.page()
			if err != nil {
				return err
			}
			return p.Write("docs")
		},
	}
}

// measure runs the model.
func measure(ctx context.Context) (f figures, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "figures.json")
	if _, err := machine.Run(exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=30m",
		"-run=^TestAFleetUsesTheWholeLimit$", "./filter/internal/fleet", "-args", "-figures", file)); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return f, page.Decode(text, &f)
}

// Figures reads the figures beside docs/cluster.md.
func Figures(docs string) (page.Figures, error) {
	var f figures
	if err := page.Read(docs, pageName, "fleet", &f); err != nil {
		return page.Figures{}, err
	}
	return f.page()
}

func (f figures) page() (page.Figures, error) {
	used, err := f.picture("Share of the limit that is used under twice the demand", percents, func(r run) float64 { return 100 * r.Used })
	if err != nil {
		return page.Figures{}, err
	}
	asks, err := f.picture("Asks for each request", shares, func(r run) float64 { return r.AsksPerRequest })
	return page.Figures{
		Page: pageName, Part: "fleet", Raw: f, Sections: map[string]string{"fleet": f.table()},
		Pictures: map[string][]byte{"fleet-used.svg": used, "fleet-asks.svg": asks},
	}, err
}

// table has a row for each pattern of demand, with the worst of its runs.
func (f figures) table() string {
	var rows []string
	for _, runs := range f {
		worst := runs[0]
		fewest := runs[0].AsksPerRequest
		for _, r := range runs[1:] {
			worst.Over, worst.Used = max(worst.Over, r.Over), min(worst.Used, r.Used)
			worst.Paused, worst.PauseP99Ms = max(worst.Paused, r.Paused), max(worst.PauseP99Ms, r.PauseP99Ms)
			worst.AsksPerRequest, fewest = max(worst.AsksPerRequest, r.AsksPerRequest), min(fewest, r.AsksPerRequest)
		}
		rows = append(rows, fmt.Sprintf("%s | %d | %.1f %% | %.3f–%.2f | %.1f %% | %.1f ms | %.1f ms", worst.Demand, worst.Over,
			100*worst.Used, fewest, worst.AsksPerRequest, 100*worst.Paused, worst.PauseP99Ms, worst.TripMs))
	}
	return page.Table("demand | over the limit | limit used, at least | asks a request | requests that wait, at most | p99 of a wait, at most | round trip", rows...)
}
