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
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

// Median returns the one in the middle, the lower of two.
func Median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[(len(sorted)-1)/2]
}

// Ratio returns the median over the rounds of how much one took of what the
// other took in the same round, so that a slow minute of the machine is one of
// both.
func Ratio(of, to []float64) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / to[i]
	}
	return Median(ratios)
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
	fmt.Fprintf(&b, "%s, %d cores, %s, %d keys, medians of %d rounds (lowest to highest).\n\n", r.CPU, r.Cores, r.Go, r.Keys, r.Rounds)
	b.WriteString("| limiter | counts | ns, one goroutine | of go-limiter | ns, two goroutines | ns, one key | bytes a key | allocations |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %s | %s | %d | %d |\n", row.Limiter, row.Counts,
			spread(row.Many), Ratio(row.Many, r.Rows[base].Many), spread(row.ManyShared), spread(row.One), row.Bytes, row.Allocs)
	}
	return b.String(), nil
}

func spread(ns []float64) string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", Median(ns), slices.Min(ns), slices.Max(ns))
}

const (
	mark = "<!-- peers -->\n"
	end  = "<!-- end -->"
)

// Update returns the page with that table between its marks.
func Update(page, table string) (string, error) {
	before, after, found := strings.Cut(page, mark)
	_, rest, ended := strings.Cut(after, end)
	if !found || !ended {
		return "", fmt.Errorf("the page has no place for a table, from %q to %q", strings.TrimSpace(mark), end)
	}
	return before + mark + table + end + rest, nil
}
