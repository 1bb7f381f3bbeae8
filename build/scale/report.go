package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/machine"
	"github.com/sluice-ratelimit/sluice/build/report"
	"github.com/sluice-ratelimit/sluice/build/sample"
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

func (r row) verdict() string {
	switch {
	case r.Target == 0:
		return ""
	case sample.Median(r.Values) <= r.Target:
		return "≤ " + number(r.Target) + ": met"
	}
	return "≤ " + number(r.Target) + ": missed"
}

// line is the row of the table.
func (r row) line() string {
	s := sample.SpreadOf(r.Values)
	return fmt.Sprintf("| %s | %s %s | %s – %s | %s |", r.What, number(s.Median), r.Unit, number(s.Least), number(s.Most), r.verdict())
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

// fill puts the table into the document.
func (r result) fill(document string) (string, error) {
	return report.Fill(document, "bench-scale", map[string]string{"parts": r.table()})
}

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

// former reads the figures there are in a folder of documents; none is no error.
func former(docs string) (r result, err error) {
	text, err := os.ReadFile(filepath.Join(docs, "scale.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// write stores the figures there and puts the table into the document.
func (r result) write(docs string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := report.Update(filepath.Join(docs, "scale.md"), r.fill); err != nil {
		return err
	}
	return report.Write(filepath.Join(docs, "scale.json"), append(text, '\n'))
}

// describe notes where this run is.
func (b *bench) describe(ctx context.Context) (err error) {
	processor, err := machine.Processor()
	if err != nil {
		return err
	}
	b.result.Machine = report.Count(runtime.NumCPU(), "core") + " of " + processor
	b.result.Envoy, err = proc.Version(ctx, b.envoy)
	return err
}
