package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/find"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// operationTexts are what help says of an operation, what its example has, and the heads of
// the table of its answers.
var operationTexts = map[string]struct {
	short, more, example string
	heads                []string
}{
	"hit":  {short: "Count a hit as a request would, and say whether it was allowed", example: " --n 3", heads: []string{"PROXY", "ANSWER", "WINDOWS"}},
	"peek": {short: "Say whether a hit would be allowed, without counting it", heads: []string{"PROXY", "ANSWER", "WINDOWS"}},
	"get":  {short: "Show what is used", heads: usedHeads},
	"inc":  {short: "Count units without asking whether they are allowed", example: " --n 5", heads: usedHeads},
	"set":  {short: "Set what is used", example: " --n 0 --window daily", heads: usedHeads},
	"reset": {
		short: "Forget a key, in all windows", heads: []string{"PROXY", "ANSWER"},
		more: `. The client is described by --key, or by one of its requests, as for sluice
counters find, in --rule or in --all-rules: in every rule that has a key of its own for
it, and not in counters that it shares with other clients.

Exits 1 if there was no such key.`,
	},
	"expires-at": {short: "Show when a key's tightest window starts anew", heads: []string{"PROXY", "EXPIRES AT", "WINDOWS"}},
	"clean":      {short: "Free expired keys of a rule or of all", heads: []string{"PROXY", "FREED"}},
	"stats": {
		short: "Show keys, memory and metrics of a rule or of all",
		more: `.

Keys and bytes are the proxy's; metrics (all of them with --output json) are
what all its workers have counted, those that did not answer up to a second ago.`,
		heads: []string{"PROXY", "RULE", "KEYS", "CAPACITY", "BYTES", "ALLOWED", "DENIED", "SHADOW DENIED", "EVICTED", "FLOOR DENIED"},
	},
	"top": {
		short: "Show the keys that a rule or all rules deny most",
		more: `: those of the last 10 to 20
minutes, of all proxies and their workers together, up to 32 of each rule. MODE says
whether the rule's denials are enforced, or are in shadow mode and deny nobody; with
enforce_percent, or where proxies run other policies, it is partly enforced.

Each was denied DENIED times for certain, and up to ERROR times more. The policy's
report_keys says how keys are shown: as hashes, by default, or plain, or not at all. With
report_keys: hash in the policy a key has the same hash on all proxies of a control plane.`,
	},
}

var usedHeads = []string{"PROXY", "USED", "WINDOWS"}

// countersOptions are the flags of one operation.
type countersOptions struct {
	manageOptions
	op      manage.Operation
	subject manage.Subject

	request  requestOptions // of reset
	allRules bool
}

func newCountersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Read and change counters in running proxies",
		Long: `Read and change counters in running proxies, through the management path that
the policy turns on:

  manage: {path: /.sluice/, port: 9902, token_sha256: "…"}   # printf %s "$TOKEN" | sha256sum

The control plane asks every proxy that is connected (sluice render envoy
--manage tells it where) and has the management token: sluice serve
--manage-token-file. Changes are in the audit log. With --proxy one proxy is asked
from here, with the token in a file; nothing of that is in the audit log.

The counters of a rule of scope cluster are the quota service's. The control plane
asks its own, or with sluice serve --quota-store URL the one on that store. The
proxies then say what they hold: units that count as used and that they may still
spend, for 10 seconds at most. So set and reset are exact after 10 seconds.

Exits 1 unless every proxy did it, and if reset found no such key on any of them.`,
	}
	for _, op := range manage.Operations {
		cmd.AddCommand(newOperationCommand(op))
	}
	cmd.AddCommand(newCountersFindCommand())
	return cmd
}

func newOperationCommand(op manage.Operation) *cobra.Command {
	o, text := countersOptions{op: op}, operationTexts[op.Name]
	use := "  sluice counters " + op.Name
	if op.Keyed {
		use += " --rule per-user --key alice"
	}
	use += text.example
	cmd := &cobra.Command{
		Use:     op.Name,
		Short:   text.short,
		Long:    text.short + text.more,
		Example: use + "\n" + use + " --proxy http://127.0.0.1:9902/.sluice/ --manage-token-file token",
		RunE:    func(cmd *cobra.Command, _ []string) error { return counters(cmd, o) },
	}
	if op.Name != op.Wire {
		cmd.Aliases = []string{op.Wire}
	}
	if op.Name == "reset" {
		cmd.Example += "\n  sluice counters reset --all-rules --header x-user-id=alice --client-ip 192.0.2.7"
	}
	o.AddFlags(cmd)
	return cmd
}

// AddFlags adds the flags that the operation takes.
func (o *countersOptions) AddFlags(cmd *cobra.Command) {
	f, s := cmd.Flags(), &o.subject
	if o.op.Keyed {
		usage := "`NAME` of the rule (required)"
		if o.op.Name == "reset" {
			usage = "`NAME` of the rule (required without --all-rules)"
		}
		f.StringVar(&s.Rule, "rule", "", usage)
		f.StringArrayVar(&s.Key, "key", nil, "a part of the key as `TEXT`; again for each further part, in the rule's order; "+policy.MissingPart+" for one that the request lacks")
	} else {
		f.StringVar(&s.Rule, "rule", "", "`NAME` of the rule (default: all rules)")
	}
	switch {
	case o.op.Name == "set": // 1 is nothing that anyone means by leaving it out
		f.StringVar(&s.N, "n", "", "`UNITS` (required)")
	case o.op.Units:
		f.StringVar(&s.N, "n", "1", "`UNITS`")
	}
	if o.op.Limits {
		f.StringArrayVar(&s.Limits, "limit", nil, "a limit as `NUMBER` that a request would say, where the policy has requests say one; again for each further one, in the rule's order (default: the policy's default)")
	}
	if o.op.Name == "reset" {
		f.BoolVar(&o.allRules, "all-rules", false, "reset the described client in every rule that has a key of its own for it")
		o.request.AddFlags(cmd)
	}
	if o.op.Window {
		f.StringVar(&s.Window, "window", "", "`NAME` or index of the window (default: all)")
	}
	o.manageOptions.AddFlags(cmd)
}

func counters(cmd *cobra.Command, o countersOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if o.allRules || o.request.isGiven() {
		return o.resetClient(cmd)
	}
	if o.op.Units && o.subject.N == "" {
		return usageError(errors.New("--n is empty"), "give the number of units")
	}
	query, err := o.op.Query(o.subject)
	if err != nil {
		return usageError(errors.New("--"+err.Error()), "sluice counters "+o.op.Name+" --help shows examples")
	}
	a, err := o.asker(cmd)
	if err != nil {
		return err
	}
	report, err := a.Counters(cmd.Context(), o.op, query)
	if err != nil {
		return err
	}
	if err := o.output.print(cmd, report, func(b *strings.Builder) { o.print(b, report) }); err != nil {
		return err
	}
	if err := failures(report.Proxies, func(r *manage.Row) *manage.Asked { return &r.Asked }); err != nil {
		return err
	}
	return o.judge(report)
}

// judge is the error of proxies that the quota service does not answer, and of a reset that
// found nothing to forget anywhere.
func (o *countersOptions) judge(report *api.Counters) error {
	silent := 0
	for _, r := range report.Proxies {
		if r.Silent != "" {
			silent++
		}
	}
	if silent > 0 {
		return withHint(fmt.Errorf("the quota service does not answer %d of %s: on_unavailable decides there", silent, count(len(report.Proxies), "proxy", "proxies")),
			"its figures lack what they count meanwhile, and they do not see a change; sluice explain says what they decide")
	}
	if o.op.Name == "reset" && !find.WasReset(report) {
		return errNothingReset
	}
	return nil
}

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
		table = counterCells(op, manage.Row{Asked: manage.Asked{Proxy: find.QuotaService}, Result: *report.Quota})
	}
	for _, r := range report.Proxies {
		switch {
		case r.Error != "":
			table = append(table, []string{r.Proxy, "failed: " + r.Error})
		case report.Quota == nil:
			table = append(table, counterCells(op, r)...)
		case r.Silent != "":
			holds := "holds " + strconv.FormatInt(*r.Value, 10) + "; " + manage.SilentText(r.Silent)
			table = append(table, []string{r.Proxy, holds, manage.WindowsText(r.Windows, false)})
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
		used := ""
		for _, v := range r.Rules { // one
			used = usedText(v.Windows, v.Held, false)
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
	return [][]string{{r.Proxy, strconv.FormatInt(*r.Value, 10), usedText(r.Windows, r.Held, false)}}
}

// usedText is how windows stand, and what requests hold beside that.
func usedText(windows []result.Window, held *uint32, ends bool) string {
	text := manage.WindowsText(windows, ends)
	if held := manage.HeldText(held, windows); held != "" {
		text += "; " + held
	}
	return text
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
