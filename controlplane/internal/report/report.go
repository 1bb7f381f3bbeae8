// Package report writes what a replay or a suggestion found: as text, and a replay as one
// HTML file, which needs no other file, no script and no network.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxDrawn is how many rules of a policy have charts. Tables have all.
const maxDrawn = 32

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"n": grouped, "share": share, "time": moment, "key": keyText, "inc": func(i int) int { return i + 1 },
	"clients": func(caption string, list []replay.Client) clientsView { return clientsView{caption, list} },
}).Parse(pageText))

// view is what the page shows.
type view struct {
	Title    string
	Report   *replay.Report
	Outcomes []outcomeView
}

type outcomeView struct {
	*replay.Outcome
	// What the counts of the same names are of; "" = there is no other policy.
	Alone, ShadowAlone string

	Rules []ruleView
	Left  int // rules without charts
}

type ruleView struct {
	*replay.Rule
	Pictures []Picture
}

type clientsView struct {
	Caption string
	Clients []replay.Client
}

// Write writes the page of a replay.
func Write(w io.Writer, r *replay.Report) error {
	v := &view{Title: "What " + r.Policy + " would have denied", Report: r}
	first, err := outcome(r, &r.Outcome)
	if err != nil {
		return err
	}
	v.Outcomes = []outcomeView{first}
	if other := r.Against; other != nil {
		second, err := outcome(r, other)
		if err != nil {
			return err
		}
		v.Outcomes[0].Alone, v.Outcomes[0].ShadowAlone = "No longer denied by "+other.Policy, "No longer denied in shadow by "+other.Policy
		second.Alone, second.ShadowAlone = "Newly denied", "Newly denied in shadow"
		v.Outcomes = append(v.Outcomes, second)
	}
	if err := page.Execute(w, v); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func outcome(r *replay.Report, o *replay.Outcome) (v outcomeView, err error) {
	v.Outcome, v.Left = o, max(len(o.Rules)-maxDrawn, 0)
	for i := range o.Rules {
		rule := ruleView{Rule: &o.Rules[i]}
		if i < maxDrawn && rule.Requests > 0 {
			if err := rule.draw(r.Timeline); err != nil {
				return v, err
			}
		}
		v.Rules = append(v.Rules, rule)
	}
	return v, nil
}

func (v *ruleView) draw(t replay.Timeline) error {
	p, err := overTime(t, v.Rule)
	if err != nil {
		return err
	}
	v.Pictures = append(v.Pictures, p)
	for i := range v.Use {
		u := &v.Use[i]
		per := span(u.PeriodNs)
		if u.Months > 0 {
			per = policy.FormatMonths(u.Months)
		}
		if p, err = use(&u.Distribution, u.Units, "per "+per); err != nil {
			return err
		}
		v.Pictures = append(v.Pictures, p)
	}
	if len(v.Top) > 0 {
		if p, err = heat(t, v.Top); err != nil {
			return err
		}
		v.Pictures = append(v.Pictures, p)
	}
	return nil
}

// maxKeyBytes is how much of a key a table shows.
const maxKeyBytes = 200

// keyText shows a key without signs that would rearrange the page's text.
func keyText(key []*string) string {
	return printable.Text(printable.Cut(replay.KeyText(key), maxKeyBytes))
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

func moment(ns int64) string { return accesslog.Time(ns).UTC().Format(time.DateTime + "Z") }
