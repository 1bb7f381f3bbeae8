package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/describe"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// clientHint says how to describe a client.
var clientHint = "describe one of its requests with " + describe.Flags()

// describedError makes the error of a description one of flags.
func describedError(err error) error {
	var wrong *describe.Error
	switch {
	case !errors.As(err, &wrong):
		return err
	case wrong.Part == "":
		return usageError(err, clientHint)
	case wrong.Example == "":
		return usageError(errors.New("--"+err.Error()), clientHint)
	}
	return usageError(errors.New("--"+err.Error()), "give something like --"+wrong.Part+" '"+wrong.Example+"'")
}

// about returns the described request, and what asks the proxies about it.
func (o *askOptions) about(cmd *cobra.Command, c *describe.Client) (*simulate.Request, clients.Asker, error) {
	r, err := c.RequestForProxy()
	if err != nil {
		return nil, nil, describedError(err)
	}
	a, err := o.asker(cmd)
	return r, a, err
}

// findOptions are the flags of counters find.
type findOptions struct {
	client describe.Client
	askOptions
}

func (o *findOptions) AddFlags(cmd *cobra.Command) {
	o.client.AddFlags(cmd.Flags())
	o.askOptions.AddFlags(cmd)
}

func newCountersFindCommand() *cobra.Command {
	var o findOptions
	cmd := &cobra.Command{
		Use:   "find",
		Short: "Find a client's counters in all rules, what denies it, and how to free it",
		Long: `Find the counters of a client. Describe the client by one of its requests, as for
sluice explain. For each rule the output has

- the client's key, or why it has none
- how much of each window is used, and whether the client is denied now
- how often the rule denied the client recently, if counters top shows the key
- the command that frees the client

Nothing is counted.

Rules that do not apply to the described request are shown too, with the client's key.
Without --method, --host and --path you describe any request of the client: each rule
says which requests it applies to, and denies the client if it denies even the cheapest
of them. A credential is never printed, only the hash of the key that counters top shows.

It exits with 1 if no rule has a key of the client.`,
		Example: `  sluice counters find --header x-user-id=alice --client-ip 192.0.2.7

  sluice counters find --client-ip 192.0.2.7 --host api.example.com --path /v1/orders`,
		RunE: func(cmd *cobra.Command, _ []string) error { return findClient(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func findClient(cmd *cobra.Command, o *findOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	r, a, err := o.about(cmd, &o.client)
	if err != nil {
		return err
	}
	report, err := clients.Find(cmd.Context(), a, r)
	if err != nil {
		return err
	}
	for _, k := range report.Rules {
		if k.NoKey == "" {
			k.Reset = resetCommand(cmd, k)
		}
	}
	if err := o.output.print(cmd, report, func(b *strings.Builder) { printClient(b, report) }); err != nil {
		return err
	}
	switch {
	case report.IsPartial():
		return withHint(errors.New("some counters are not known: their lines say why"), "sluice status shows the proxies")
	case !report.Found():
		return withHint(errors.New("no rule has a key of this client"), clientHint)
	}
	return nil
}

// printClient prints the counters of a client, and what denies it.
func printClient(b *strings.Builder, r *clients.Report) {
	switch {
	case len(r.DeniedBy) > 0:
		fmt.Fprintf(b, "denied now by %s\n", printable.Text(strings.Join(r.DeniedBy, ", ")))
	case r.IsPartial():
		b.WriteString("not known whether a rule denies this client now\n")
	default:
		b.WriteString("no rule denies this client now\n")
	}
	for _, k := range r.Rules {
		printClientKey(b, k)
	}
	for _, f := range r.Failed {
		fmt.Fprintf(b, "\n%s failed: %s\n", printable.Text(f.Proxy), printable.Text(f.Error))
	}
}

func printClientKey(b *strings.Builder, k *clients.Key) {
	fmt.Fprintf(b, "\n%s\n", printable.Text(k.Rule))
	if k.NoKey != "" {
		fmt.Fprintf(b, "  no key: %s\n", printable.Text(k.NoKey))
	} else {
		fmt.Fprintf(b, "  key: %s\n", printable.Text(k.Text()))
	}
	switch {
	case k.Only != "":
		fmt.Fprintf(b, "  only for %s\n", printable.Text(k.Only))
	case k.Why != "":
		fmt.Fprintf(b, "  not for this request: %s\n", printable.Text(k.Why))
	}
	if k.Error != "" {
		fmt.Fprintf(b, "  failed: %s\n", printable.Text(k.Error))
	}
	if k.NoKey != "" || k.Error != "" {
		return
	}
	table := [][]string{{"  PROXY", "NOW", "WINDOWS", "LATELY DENIED", "HASH"}}
	for i := range k.Counters {
		table = append(table, counterRow(&k.Counters[i]))
	}
	printTable(b, table)
	printHowToFree(b, k)
}

func counterRow(c *clients.Counter) []string {
	row := []string{"  " + c.Proxy, c.Now()}
	if c.Error != "" {
		return row
	}
	denied := ""
	if c.Denied != nil {
		denied = strconv.FormatUint(uint64(*c.Denied), 10)
	}
	return append(row, usedText(c.Windows, c.Held, c.BlockedMs, true), denied, c.Hash)
}

func printHowToFree(b *strings.Builder, k *clients.Key) {
	switch {
	case !k.IsCounted():
		b.WriteString("  nothing is counted: the key is unlimited\n")
	case k.Reset == "":
		fmt.Fprintf(b, "  to free it, repeat the flags of this find: sluice counters reset --rule %s\n",
			printable.Text(shellWord(k.Rule)))
	case k.Common:
		fmt.Fprintf(b, "  to free it, for all clients that share it: %s\n", printable.Text(k.Reset))
	default:
		fmt.Fprintf(b, "  to free it: %s\n", printable.Text(k.Reset))
	}
}

// resetCommand is the command that resets the key at the proxies that cmd asks. It is empty if
// a part of the key cannot be printed.
func resetCommand(cmd *cobra.Command, k *clients.Key) string {
	isUnprintable := func(p result.KeyPart) bool { return p.Hidden || p.Value != nil && !printable.Is(*p.Value) }
	if slices.ContainsFunc(k.Key, isUnprintable) {
		return ""
	}
	line := "sluice counters reset --rule " + shellWord(k.Rule)
	for _, part := range k.Parts {
		line += " --key " + shellWord(part)
	}
	for _, name := range askFlags {
		if f := cmd.Flags().Lookup(name); f.Changed {
			line += " --" + name + "=" + shellWord(f.Value.String())
		}
	}
	return line
}

// plainWord matches what a shell reads as one word.
var plainWord = regexp.MustCompile(`^[-\w./:,@%+=]+$`)

// shellWord quotes a text for a shell, if it has to be quoted.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

const resetHint = "give --rule and --key, or describe the client and give --rule or --all-rules: " +
	"sluice counters reset --help shows both"

// resetClient resets the counters of a described client, in one rule or in all.
func resetClient(cmd *cobra.Command, o *countersOptions) error {
	rule := o.subject.Rule
	switch {
	case o.allRules && rule != "":
		return usageError(errors.New("--rule and --all-rules exclude each other"), resetHint)
	case !o.allRules && rule == "":
		return usageError(errors.New("a described client needs --rule or --all-rules"), resetHint)
	case len(o.subject.Key) > 0:
		return usageError(errors.New("--key does not go with the description of a client"), resetHint)
	}
	r, a, err := o.about(cmd, &o.client)
	if err != nil {
		return err
	}
	var freed *clients.Freed
	if o.allRules {
		freed, err = clients.Free(cmd.Context(), a, r)
	} else {
		freed, err = clients.FreeIn(cmd.Context(), a, r, rule)
	}
	if err != nil {
		return noKeyHint(err)
	}
	if err := o.output.print(cmd, freed, func(b *strings.Builder) { printFreed(b, freed) }); err != nil {
		return err
	}
	switch {
	case freed.Missed() > 0:
		return withHint(errors.New("not all counters were reset: their lines say why"), "sluice status shows the proxies")
	case !freed.Any():
		return errNothingReset
	}
	return nil
}

func noKeyHint(err error) error {
	var noKey *clients.NoKeyError
	switch {
	case !errors.As(err, &noKey):
		return err
	case noKey.Why == "":
		return withHint(err, "sluice counters find shows a client's keys in all rules")
	}
	return withHint(err, clientHint)
}

// printFreed prints what became of each key.
func printFreed(b *strings.Builder, freed *clients.Freed) {
	table := [][]string{{"RULE", "KEY", "PROXY", "ANSWER"}}
	note := "" // the same for all rules of the quota service
	for i := range freed.Resets {
		r := &freed.Resets[i]
		key := r.Text()
		if r.Error != "" {
			table = append(table, []string{r.Rule, key, "", "failed: " + r.Error})
			continue
		}
		for _, cells := range answerRows(manage.Reset, r.Counters) {
			table = append(table, append([]string{r.Rule, key}, cells...))
		}
		if r.Note != "" {
			note = printable.Text(r.Note) + "\n"
		}
	}
	for _, f := range freed.Failed {
		table = append(table, []string{"", "", f.Proxy, "failed: " + f.Error})
	}
	if len(table) > 1 {
		printTable(b, table)
		b.WriteString(note)
	}
}

var errNothingReset = withHint(errors.New("there was no such key: nothing was reset"),
	"sluice counters find shows a client's keys; sluice counters top shows keys as --key takes them, one --key a part")
