// Package libraries is what the keyed library and other libraries for Go took for
// the same work: as it is kept in a file, and as the table of a document.
//
// Its invariant: it measures nothing and rounds only what it prints; the
// figures come from the program in measure, which is a module of its own so that
// nobody else needs the others. It must never import a limiter.
package libraries

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/report"
	"github.com/sluice-ratelimit/sluice/build/sample"
)

// Results are the figures of one run.
type Results struct {
	CPU    string   `json:"cpu"`
	Cores  int      `json:"cores"`
	Go     string   `json:"go"`
	Keys   int      `json:"keys"`
	Rounds int      `json:"rounds"`
	Rows   []Result `json:"rows"`
}

// Result is what one limiter took.
type Result struct {
	Limiter string `json:"limiter"` // module and version
	Counts  string `json:"counts"`  // what it was asked to count
	Bytes   int    `json:"bytes"`   // of heap for each key
	Allocs  int    `json:"allocs"`  // for each decision on a key it knows

	// Nanoseconds for each decision, of each round.
	Many       []float64 `json:"many"`        // keys, at random, by one goroutine
	ManyShared []float64 `json:"many_shared"` // keys, at random, by two goroutines at once
	One        []float64 `json:"one"`         // key, by one goroutine
}

// Read reads the file that measure writes.
func Read(file string) (r Results, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// Write writes the file that Read reads.
func (r Results) Write(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return report.Write(file, append(text, '\n'))
}

// baseline is the row of the limiter that the others are compared with.
const baseline = "go-limiter"

// Table returns the figures as a table of Markdown.
func (r Results) Table() (string, error) {
	base := slices.IndexFunc(r.Rows, func(row Result) bool { return strings.Contains(row.Limiter, baseline) })
	if base < 0 {
		return "", fmt.Errorf("there is no row of %s to compare with", baseline)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s, %s, medians of %s (lowest to highest).\n\n",
		r.CPU, report.Count(r.Cores, "core"), r.Go, report.Count(r.Keys, "key"), report.Count(r.Rounds, "round"))
	b.WriteString("| limiter | counts | ns, one goroutine | of go-limiter | ns, two goroutines | ns, one key | bytes a key | allocations |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %s | %s | %d | %d |\n", row.Limiter, row.Counts,
			spread(row.Many), sample.MedianRatio(row.Many, r.Rows[base].Many), spread(row.ManyShared), spread(row.One), row.Bytes, row.Allocs)
	}
	ours := r.Rows[0]
	ratio := sample.MedianRatio(ours.Many, r.Rows[base].Many)
	fmt.Fprintf(&b, "\nHeld against what `shared/keyed` is to reach, in its first row: less time than %s over all keys, %.2f of it, %s; at most %d bytes a key, %s.\n",
		baseline, ratio, verdict(ratio < 1), mostBytes, verdict(ours.Bytes <= mostBytes))
	return b.String(), nil
}

// mostBytes is what a key may take of shared/keyed.
const mostBytes = 40

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

func spread(ns []float64) string {
	s := sample.SpreadOf(ns)
	return fmt.Sprintf("%.0f (%.0f to %.0f)", s.Median, s.Least, s.Most)
}

// Fill puts that table into the document.
func (r Results) Fill(document string) (string, error) {
	table, err := r.Table()
	if err != nil {
		return "", err
	}
	return report.Fill(document, "bench-keyed", map[string]string{"limiters": table})
}
