package scale

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// figures are all that a run found: what docs/scale.json holds.
type figures struct {
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

const pageName = "scale"

// Figures reads the figures beside docs/scale.md.
func Figures(docs string) (page.Figures, error) {
	var f figures
	err := page.Read(docs, pageName, "", &f)
	return f.page(), err
}

func (f figures) page() page.Figures {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of repeated runs and their range, on %s, Envoy %s.\n", f.Machine, f.Envoy)
	for _, p := range parts {
		var lines []string
		for _, r := range f.of(p) {
			lines = append(lines, r.line())
		}
		fmt.Fprintf(&b, "\n%s", page.Table(p.title+" | median | range | target", lines...))
	}
	return page.Figures{Page: pageName, Raw: f, Sections: map[string]string{"parts": b.String()}}
}

func (f figures) of(p part) []row {
	return slices.DeleteFunc(slices.Clone(f.Rows), func(r row) bool { return r.Part != p.title })
}

// join keeps the former figures of the parts that were not measured.
func (f figures) join(former figures) figures {
	var rows []row
	for _, p := range parts {
		if now := f.of(p); len(now) > 0 {
			rows = append(rows, now...)
		} else {
			rows = append(rows, former.of(p)...)
		}
	}
	f.Rows = rows
	return f
}

// line is the row of the table.
func (r row) line() string {
	s := sample.SpreadOf(r.Values)
	verdict := ""
	switch {
	case r.Target == 0:
	case s.Median <= r.Target:
		verdict = "≤ " + number(r.Target) + ": met"
	default:
		verdict = "≤ " + number(r.Target) + ": **missed**"
	}
	return fmt.Sprintf("%s | %s %s | %s – %s | %s", r.What, number(s.Median), r.Unit, number(s.Min), number(s.Max), verdict)
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
