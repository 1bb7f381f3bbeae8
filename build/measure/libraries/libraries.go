// Package libraries asks the keyed library and other rate limit libraries for Go
// the same questions, and notes the time and the memory they take.
//
// Its invariant: each figure is of a process of its own, so that no limiter pays for
// the memory of another. The processes take turns, so that a slow minute of the
// machine falls on all.
package libraries

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// figures are those of one run: what docs/keyed-performance.json holds.
type figures struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Go     string `json:"go"`
	Keys   int    `json:"keys"`
	Rounds int    `json:"rounds"`
	Rows   []row  `json:"rows"`
}

// row is what one limiter took.
type row struct {
	Limiter string `json:"limiter"` // module and version
	Counts  string `json:"counts"`  // what it was asked to count
	Bytes   int    `json:"bytes"`   // of heap for each key
	Allocs  int    `json:"allocs"`  // for each decision on a key it knows

	// Nanoseconds for each decision, of each round.
	Many       []float64 `json:"many"`        // keys, at random, by one goroutine
	ManyShared []float64 `json:"many_shared"` // keys, at random, by two goroutines at once
	One        []float64 `json:"one"`         // key, by one goroutine
}

// Command is the subcommand.
func Command() *cobra.Command {
	var rounds, one int
	var docs string
	cmd := &cobra.Command{
		Use:   "libraries",
		Short: "What a decision of the Go library costs beside others: into docs/keyed-performance.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if one >= 0 {
				m, err := measure(limiters[one], keys)
				if err != nil {
					return err
				}
				return json.NewEncoder(os.Stdout).Encode(m)
			}
			f, err := measureAll(cmd.Context(), rounds)
			if err != nil {
				return err
			}
			fmt.Print(f.table())
			if docs == "" {
				return nil
			}
			return f.page().Write(docs)
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 7, "how often each limiter is measured")
	cmd.Flags().StringVar(&docs, "docs", "", "`folder` of keyed-performance.md; default: only print")
	cmd.Flags().IntVar(&one, "limiter", -1, "measure that one in this process, once, and print it")
	return cmd
}

// keys is how many keys there are.
const keys = 100_000

// measureAll runs this program once for each limiter and round.
func measureAll(ctx context.Context, rounds int) (f figures, err error) {
	f = figures{Cores: runtime.NumCPU(), Go: runtime.Version(), Keys: keys, Rounds: rounds}
	if f.CPU, err = machine.Processor(); err != nil {
		return f, err
	}
	for _, l := range limiters {
		name, err := versioned(l.module)
		if err != nil {
			return f, err
		}
		f.Rows = append(f.Rows, row{Limiter: name, Counts: l.counts})
	}
	for range rounds {
		for i := range limiters {
			ran, err := machine.Run(exec.CommandContext(ctx, os.Args[0], "libraries", "--limiter", fmt.Sprint(i)))
			if err != nil {
				return f, err
			}
			var m round
			if err := json.Unmarshal(ran.Out, &m); err != nil {
				return f, fmt.Errorf("read what a limiter took: %w", err)
			}
			r := &f.Rows[i]
			r.Bytes, r.Allocs = m.Bytes, m.Allocs
			r.Many, r.ManyShared, r.One = append(r.Many, m.Many), append(r.ManyShared, m.ManyShared), append(r.One, m.One)
		}
	}
	return f, nil
}

const pageName = "keyed-performance"

// Figures reads the figures beside docs/keyed-performance.md.
func Figures(docs string) (page.Figures, error) {
	var f figures
	if err := page.Read(docs, pageName, "", &f); err != nil {
		return page.Figures{}, err
	}
	return f.page(), nil
}

func (f figures) page() page.Figures {
	return page.Figures{Page: pageName, Raw: f, Sections: map[string]string{"limiters": f.table()}}
}

// The library is held to these: less time than baseline, at most maxBytes a key.
const (
	baseline = "go-limiter"
	maxBytes = 40
)

// table is the table of all limiters, with what they were measured on and the
// verdict on the first one.
func (f figures) table() string {
	var base row
	for _, r := range f.Rows {
		if strings.Contains(r.Limiter, baseline) {
			base = r
		}
	}
	ofBase := func(r row) float64 { return sample.Median(sample.Ratios(r.Many, base.Many)) }
	var rows []string
	for _, r := range f.Rows {
		rows = append(rows, fmt.Sprintf("%s | %s | %s | %.2f | %s | %s | %d | %d", r.Limiter, r.Counts,
			spread(r.Many), ofBase(r), spread(r.ManyShared), spread(r.One), r.Bytes, r.Allocs))
	}
	ours := f.Rows[0]
	return fmt.Sprintf("%s, %s, %s, %s, medians of %s (lowest to highest).\n\n%s\n",
		f.CPU, page.Count(f.Cores, "core"), f.Go, page.Count(f.Keys, "key"), page.Count(f.Rounds, "round"),
		page.Table("limiter | counts | ns, one goroutine | of go-limiter | ns, two goroutines | ns, one key | bytes a key | allocations", rows...)) +
		fmt.Sprintf("The first row against the targets of `shared/keyed`: less time than %s over all keys, %.2f of it, %s; at most %d bytes a key, %s.\n",
			baseline, ofBase(ours), verdict(ofBase(ours) < 1), maxBytes, verdict(ours.Bytes <= maxBytes))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

func spread(ns []float64) string {
	s := sample.SpreadOf(ns)
	return fmt.Sprintf("%.0f (%.0f to %.0f)", s.Median, s.Min, s.Max)
}
