package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// printAnswers prints the answers of the proxies to an operation, and their sum if there is one.
func printAnswers(b *strings.Builder, op manage.Operation, report *api.Counters) {
	if op.Name == "top" {
		printDenials(b, report)
		return
	}
	table := [][]string{operationTexts[op.Name].heads}
	table = append(table, answerRows(op, report)...)
	if sum := sumText(op, report); sum != "" {
		table = append(table, []string{"sum", sum})
	}
	printTable(b, table)
	if report.Note != "" {
		b.WriteString(printable.Text(report.Note) + "\n")
	}
}

// sumText is the sum of the proxies' values, empty if they do not add up.
func sumText(op manage.Operation, report *api.Counters) string {
	holds := ""
	if report.Quota != nil {
		holds = "holds "
	}
	var failed []string
	for _, r := range report.Proxies {
		if r.Error != "" {
			failed = append(failed, r.Proxy)
		}
	}
	addsUp := op.Sums || report.Quota != nil
	switch {
	case report.AtLeast != nil:
		return fmt.Sprintf("%sat least %d, without %s", holds, *report.AtLeast, strings.Join(failed, ", "))
	case report.Sum != nil:
		return fmt.Sprintf("%s%d", holds, *report.Sum)
	case addsUp && len(failed) > 0:
		return "not known: no proxy answered"
	}
	return ""
}

// answerRows are the rows of all answers. If the quota service has answered, it comes first,
// and the proxies say what they hold.
func answerRows(op manage.Operation, report *api.Counters) (table [][]string) {
	if report.Quota != nil {
		quota := manage.Row{Asked: manage.Asked{Proxy: clients.QuotaService}, Result: *report.Quota}
		table = answerRow(op, &quota)
	}
	for i := range report.Proxies {
		r := &report.Proxies[i]
		switch {
		case r.Error != "":
			table = append(table, []string{r.Proxy, "failed: " + r.Error})
		case report.Quota == nil:
			table = append(table, answerRow(op, r)...)
		case r.Silent != "":
			holds := fmt.Sprintf("holds %d; %s", *r.Value, manage.SilentText(r.Silent))
			table = append(table, []string{r.Proxy, holds, manage.WindowsText(r.Windows, false)})
		default:
			table = append(table, []string{r.Proxy, fmt.Sprintf("holds %d", *r.Value)})
		}
	}
	return table
}

// answerRow is the row of one answer. Stats have one a rule.
func answerRow(op manage.Operation, r *manage.Row) [][]string {
	switch op.Name {
	case "stats":
		return statsRows(r)
	case "hit", "peek":
		used := ""
		for _, v := range r.Rules { // it is one at most
			used = usedText(v.Windows, v.Held, v.BlockedMs, false)
		}
		return [][]string{{r.Proxy, manage.VerdictText(&r.Result), used}}
	case "expires-at":
		at := "nothing is counted"
		if *r.Value > 0 {
			at = time.UnixMilli(*r.Value).UTC().Format("2006-01-02 15:04:05.000Z")
		}
		return [][]string{{r.Proxy, at, manage.WindowsText(r.Windows, false)}}
	case "reset":
		if *r.Value == 0 {
			return [][]string{{r.Proxy, "there was no such key"}}
		}
		return [][]string{{r.Proxy, "reset"}}
	case "clean":
		return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10)}}
	}
	return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10), usedText(r.Windows, r.Held, r.BlockedMs, false)}}
}

func statsRows(r *manage.Row) [][]string {
	if len(r.Stats) == 0 {
		return [][]string{{r.Proxy, "no rules"}}
	}
	rows := make([][]string, 0, len(r.Stats))
	for i := range r.Stats {
		s := &r.Stats[i]
		row := []string{r.Proxy, s.Rule}
		for _, n := range []uint64{
			s.Keys, s.Capacity, s.Bytes,
			s.Metrics["allowed"], s.Metrics["denied"], s.Metrics["shadow_denied"], s.Metrics["evicted"],
			s.Metrics["floor_denied"],
		} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// usedText is what is used of each window, what running requests hold in addition, and whether the
// key is blocked.
func usedText(windows []result.Window, held *uint32, blockedMs int64, ends bool) string {
	text := manage.WindowsText(windows, ends)
	for _, more := range [...]string{manage.HeldText(held, windows), manage.BlockedText(blockedMs)} {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

// printDenials prints the keys that are denied most, and the proxies that did not say.
func printDenials(b *strings.Builder, report *api.Counters) {
	showBlocked := slices.ContainsFunc(report.Denials, func(d result.Denials) bool { return d.Blocks && len(d.Keys) > 0 })
	table := [][]string{{"RULE", "MODE", "DENIED", "ERROR", "BLOCKED", "KEY"}}
	since := int64(0)
	for i := range report.Denials {
		d := &report.Denials[i]
		table = append(table, denialRows(d)...)
		if d.SinceMs != 0 && (since == 0 || d.SinceMs < since) {
			since = d.SinceMs
		}
	}
	if !showBlocked {
		for i := range table {
			table[i] = slices.Delete(table[i], 4, 5)
		}
	}
	switch {
	case len(table) > 1:
		printTable(b, table)
		fmt.Fprintf(b, "since %s\n", moment(time.UnixMilli(since)))
		printUnknownBlocks(b, report.Denials)
	case report.Failed < len(report.Proxies):
		b.WriteString("no key was denied lately\n")
	}
	for _, r := range report.Proxies {
		if r.Error != "" {
			fmt.Fprintf(b, "%s failed: %s\n", printable.Text(r.Proxy), printable.Text(r.Error))
		}
	}
}

func denialRows(d *result.Denials) (rows [][]string) {
	for i := range d.Keys {
		k := &d.Keys[i]
		denied := strconv.FormatUint(uint64(k.Denied), 10)
		more := strconv.FormatUint(uint64(k.Error), 10)
		blocked := ""
		if d.Blocks {
			blocked = blockedCell(k)
		}
		rows = append(rows, []string{d.Rule, d.Mode, denied, more, blocked, manage.KeyText(k)})
	}
	return rows
}

func blockedCell(k *result.DeniedKey) string {
	switch {
	case k.BlockedMs == nil:
		return "not known"
	case *k.BlockedMs == 0:
		return "no"
	}
	return "for " + manage.Span(*k.BlockedMs)
}

// printUnknownBlocks prints why it is not known whether keys are blocked, each reason once a rule.
func printUnknownBlocks(b *strings.Builder, denials []result.Denials) {
	for i := range denials {
		var said []string
		for j := range denials[i].Keys {
			why := denials[i].Keys[j].BlockedNotKnown
			if why == "" || slices.Contains(said, why) {
				continue
			}
			said = append(said, why)
			fmt.Fprintf(b, "not known whether keys of %s are blocked: %s\n",
				printable.Text(denials[i].Rule), printable.Text(why))
		}
	}
}
