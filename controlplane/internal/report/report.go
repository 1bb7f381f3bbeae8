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
	"n": grouped, "share": share, "time": moment, "key": keyCell, "count": count, "per": per,
	"inc":  func(i int) int { return i + 1 },
	"text": printable.Text, "upper": strings.ToUpper, "join": strings.Join,
	"chart":    draw,
	"chartCSS": func() template.CSS { return template.CSS(chart.CSS) }, //nolint:gosec // it is the program's own
	"readings": readings, "outcomes": outcomes, "alone": alone, "byOthers": byOthers,
	"clients": func(title any, list []replay.Client) clientsView { return clientsView{title, list} },
}

// draw draws what a rule decided, with its limits as averages over what an element of the
// timeline stands for.
func draw(t replay.Timeline, r replay.Rule) (template.HTML, error) {
	c := chart.Chart{Per: "per " + per(t.WidthNs, 0)}
	for i := range t.Count {
		c.Times = append(c.Times, time.Unix(0, t.StartNs+int64(i)*t.WidthNs))
	}
	c.Allowed = chart.Values(r.Series.Allowed)
	c.Denied = chart.Values(r.Series.Denied)
	c.Shadow = chart.Values(r.Series.Shadow)
	each := ""
	if len(r.Key) > 0 {
		each = " of each key"
	}
	for _, u := range r.Use {
		if u.PeriodNs > 0 { // slots are of no time
			c.Limits = append(c.Limits, chart.Limit{
				Text: fmt.Sprintf("limit%s: %s per %s", each, chart.Number(u.Requests), per(u.PeriodNs, u.Months)),
				At:   u.Requests / float64(u.PeriodNs) * float64(t.WidthNs),
			})
		}
	}
	return c.HTML()
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

// byOthers says what another rule has denied before a rule could count it.
func byOthers(n int64) string {
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
