package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// quotaService is how its answer is called among those of proxies.
const quotaService = "quota service"

// print prints the answers of the proxies, and the sum where there is one.
func (o *countersOptions) print(b *strings.Builder, report *api.Counters) {
	if o.op.Name == "top" {
		printDenials(b, report)
		return
	}
	table, holds := append([][]string{operationTexts[o.op.Name].heads}, answerCells(o.op, report)...), ""
	if report.Quota != nil {
		holds = "holds "
	}
	var failed []string
	for _, r := range report.Proxies {
		if r.Error != "" {
			failed = append(failed, r.Proxy)
		}
	}
	switch unknown := strings.Join(failed, ", "); {
	case report.AtLeast != nil:
		table = append(table, []string{"sum", holds + "at least " + strconv.FormatInt(*report.AtLeast, 10) + ", without " + unknown})
	case report.Sum == nil && unknown != "" && (holds != "" || o.op.Sums):
		table = append(table, []string{"sum", "not known: no proxy answered"})
	case report.Sum != nil:
		table = append(table, []string{"sum", holds + strconv.FormatInt(*report.Sum, 10)})
	}
	printTable(b, table)
	if report.Note != "" {
		b.WriteString(printable.Text(report.Note) + "\n")
	}
}

// answerCells are the lines of all answers, first that of the quota service: then those of
// the proxies say what they hold.
func answerCells(op manage.Operation, report *api.Counters) (table [][]string) {
	if report.Quota != nil {
		table = counterCells(op, manage.Row{Asked: manage.Asked{Proxy: quotaService}, Answer: *report.Quota})
	}
	for _, r := range report.Proxies {
		switch {
		case r.Error != "":
			table = append(table, []string{r.Proxy, "failed: " + r.Error})
		case report.Quota == nil:
			table = append(table, counterCells(op, r)...)
		case r.Silent != "":
			table = append(table, []string{r.Proxy, "holds " + strconv.FormatInt(*r.Value, 10) + "; " + silentText(r.Silent), windowsText(r.Windows)})
		default:
			table = append(table, []string{r.Proxy, "holds " + strconv.FormatInt(*r.Value, 10)})
		}
	}
	return table
}

// counterCells are the lines of one proxy: one, but for stats.
func counterCells(op manage.Operation, r manage.Row) [][]string {
	switch op.Name {
	case "stats":
		rows := make([][]string, 0, len(r.Stats))
		for _, s := range r.Stats {
			row := []string{r.Proxy, s.Rule}
			for _, n := range []uint64{
				s.Keys, s.Capacity, s.Bytes, s.Metrics["allowed"], s.Metrics["denied"], s.Metrics["shadow_denied"], s.Metrics["evicted"],
				s.Metrics["floor_denied"],
			} {
				row = append(row, strconv.FormatUint(n, 10))
			}
			rows = append(rows, row)
		}
		if len(rows) == 0 {
			rows = append(rows, []string{r.Proxy, "no rules"})
		}
		return rows
	case "hit", "peek":
		return [][]string{verdictCells(r)}
	case "expires-at":
		at := "nothing is counted"
		if *r.Value > 0 {
			at = time.UnixMilli(*r.Value).UTC().Format("2006-01-02 15:04:05.000Z")
		}
		return [][]string{{r.Proxy, at, windowsText(r.Windows)}}
	case "reset":
		if *r.Value == 0 {
			return [][]string{{r.Proxy, "there was no such key"}}
		}
		return [][]string{{r.Proxy, "reset"}}
	case "clean":
		return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10)}}
	}
	return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10), windowsText(r.Windows)}}
}

func verdictCells(r manage.Row) []string {
	result := "allowed"
	reasons := map[string]bool{}
	var windows []answer.Window
	for _, v := range r.Rules {
		windows = append(windows, v.Windows...)
		switch {
		case v.Mode == "shadow" && !v.Allowed:
			result += ", denied in shadow mode"
		case v.Reason != "" && v.Reason != "limit":
			reasons[v.Reason] = true
		}
	}
	if !*r.Allowed {
		result = "denied"
		switch {
		case *r.RetryMs < 0:
			result += ", and no wait would help"
		default:
			result += ", retry after " + policy.FormatDuration(*r.RetryMs*int64(time.Millisecond))
		}
	}
	if len(reasons) > 0 {
		result += " (" + strings.Join(slices.Sorted(maps.Keys(reasons)), ", ") + ")"
	}
	return []string{r.Proxy, result, windowsText(windows)}
}

// windowsText is windows in a cell: "3 of 10 per 1m; daily 12 of 1000 per 1d".
func windowsText(windows []answer.Window) string {
	texts := make([]string, 0, len(windows))
	for _, w := range windows {
		of := "any number"
		if w.Limit != nil {
			of = limitText(&w)
		}
		text := fmt.Sprintf("%d of %s per %s", w.Used, of, per(&w))
		if w.Name != "" {
			text = w.Name + " " + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// printDenials prints the keys that are denied most, and the proxies that did not say.
func printDenials(b *strings.Builder, report *api.Counters) {
	table, since := [][]string{{"RULE", "MODE", "DENIED", "ERROR", "KEY"}}, int64(0)
	for _, d := range report.Denials {
		for _, k := range d.Keys {
			table = append(table, []string{d.Rule, d.Mode, strconv.FormatUint(uint64(k.Denied), 10), strconv.FormatUint(uint64(k.Error), 10), manage.KeyText(&k)})
		}
		if d.SinceMs != 0 && (since == 0 || d.SinceMs < since) {
			since = d.SinceMs
		}
	}
	switch {
	case len(table) > 1:
		printTable(b, table)
		fmt.Fprintf(b, "since %s\n", moment(time.UnixMilli(since)))
	case report.Failed < len(report.Proxies):
		b.WriteString("no key was denied lately\n")
	}
	for _, r := range report.Proxies {
		if r.Error != "" {
			fmt.Fprintf(b, "%s failed: %s\n", printable.Text(r.Proxy), printable.Text(r.Error))
		}
	}
}
