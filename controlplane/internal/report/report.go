// Package report writes what a replay or a suggestion found: as text, and a replay as one
// HTML file, which needs no other file, no script and no network.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(functions).Parse(pageText))

// functions are those of both templates.
var functions = map[string]any{
	"n": grouped, "share": share, "time": moment, "key": keyCell, "count": count, "per": per, "inc": func(i int) int { return i + 1 },
	"text": printable.Text, "upper": strings.ToUpper, "join": strings.Join,
	"lines":    func(s replay.Series) []chart.Line[int64] { return chart.Lines(s.Allowed, s.Denied, s.Shadow) },
	"when":     func(t replay.Timeline, at int) int64 { return t.StartNs + int64(at)*t.WidthNs },
	"readings": readings, "outcomes": outcomes, "alone": alone, "elsewhere": elsewhere,
	"clients": func(title any, list []replay.Client) clientsView { return clientsView{title, list} },
}

// clientsView is a table of clients, by the parts of their key in text.
type clientsView struct {
	Title   any
	Clients []replay.Client
}

// Write writes the page of a replay.
func Write(w io.Writer, r *replay.Report) error {
	if err := page.Execute(w, r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// per is the length of a window, or of an element of the timeline.
func per(ns, months int64) string {
	if months > 0 {
		return policy.FormatMonths(months)
	}
	return policy.FormatDuration(ns)
}

// elsewhere says what another rule has denied before a rule could count it.
func elsewhere(n int64) string {
	if n == 1 {
		return "another rule denies 1 more request, which does not count here"
	}
	return "other rules deny " + count(n, "more request") + ", which do not count here"
}

// grouped prints a number with its thousands apart.
func grouped(v any) string {
	text := fmt.Sprint(v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// share prints a part of all with three digits.
func share(n, all int64) string {
	return strconv.FormatFloat(100*float64(n)/float64(max(all, 1)), 'g', 3, 64) + "%"
}

func moment(ns int64) string { return accesslog.Time(ns).Format(time.DateTime + "Z") }
