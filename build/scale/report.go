package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// result is all that a run has found out, and what docs/scale.json holds.
type result struct {
	Machine string `json:"machine"`
	Envoy   string `json:"envoy"`
	Rows    []row  `json:"rows"`
}

// row is one figure, taken several times.
type row struct {
	Part   string    `json:"part"`
	What   string    `json:"what"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
	Target float64   `json:"target,omitempty"` // the most that the median may be; 0 = none
}

func (r row) median() float64 {
	sorted := slices.Sorted(slices.Values(r.Values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (r row) verdict() string {
	switch {
	case r.Target == 0:
		return ""
	case r.median() <= r.Target:
		return "≤ " + number(r.Target) + ": met"
	}
	return "≤ " + number(r.Target) + ": missed"
}

// line is the row of the table.
func (r row) line() string {
	return fmt.Sprintf("| %s | %s %s | %s – %s | %s |", r.What, number(r.median()), r.Unit,
		number(slices.Min(r.Values)), number(slices.Max(r.Values)), r.verdict())
}

// number writes three digits, and all of those before the point.
func number(v float64) string {
	switch {
	case v >= 99.95:
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// grouped puts commas between thousands.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// table is what docs/scale.md has between its markers.
func (r result) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of repeated runs and their range, on %s, Envoy %s.\n", r.Machine, r.Envoy)
	part := ""
	for _, row := range r.Rows {
		if row.Part != part {
			part = row.Part
			fmt.Fprintf(&b, "\n| %s | median | range | target |\n|---|---|---|---|\n", part)
		}
		fmt.Fprintln(&b, row.line())
	}
	return b.String()
}

const (
	beginMarker = "<!-- figures: make bench-scale -->\n"
	endMarker   = "<!-- end of figures -->\n"
)

func docs(name string) string { return filepath.Join(buildtest.Root(), "docs", name) }

// join puts the figures of the parts that were measured in place of the former
// ones, in the order of the parts.
func (r result) join(former result, parts []part) result {
	var rows []row
	for _, p := range parts {
		isPart := func(r row) bool { return r.Part == p.title }
		from := former.Rows
		if slices.ContainsFunc(r.Rows, isPart) {
			from = r.Rows
		}
		for _, row := range from {
			if isPart(row) {
				rows = append(rows, row)
			}
		}
	}
	r.Rows = rows
	return r
}

// former reads the figures there are; none is no error.
func former() (r result, err error) {
	text, err := os.ReadFile(docs("scale.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// write stores the figures and puts the table into the document.
func (r result) write() error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	page, err := os.ReadFile(docs("scale.md"))
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(page), beginMarker)
	_, after, ended := strings.Cut(rest, endMarker)
	if !begun || !ended {
		return fmt.Errorf("docs/scale.md has no place for the figures: %q … %q", beginMarker, endMarker)
	}
	if err := os.WriteFile(docs("scale.json"), append(text, '\n'), 0o644); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	return os.WriteFile(docs("scale.md"), []byte(before+beginMarker+r.table()+endMarker+after), 0o644) //nolint:gosec // for everybody to read
}

// describe notes where this run is.
func (b *bench) describe(ctx context.Context) (err error) {
	if b.result.Machine, err = machine(); err != nil {
		return err
	}
	b.result.Envoy, err = proc.Version(ctx, b.envoy)
	return err
}
