package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/find"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

func newCountersFindCommand() *cobra.Command {
	var o struct {
		requestOptions
		manageOptions
	}
	return with(&cobra.Command{
		Use:   "find",
		Short: "Find a client's counters in all rules, what denies it, and how to free it",
		Long: `Find the counters of a client that is described by one of its requests, as for
sluice explain. For each rule: the key that the client has in it, or why it has none;
what is used of each window, and whether it denies the client now; how often it has
lately, if the key is one that counters top shows; and the command that frees it.
Nothing is counted.

Rules that are not for the described request are shown too, with the key that the
client has in them. Without --method, --host or --path the client is meant, whatever
it requests: a rule then says which requests it is for, and denies if there is no room
for the cheapest of them. A credential is never printed, only the hash that counters
top shows of the key.

Exits 1 if no rule has a key of the client.`,
		Example: `  sluice counters find --header x-user-id=alice --client-ip 192.0.2.7

  sluice counters find --client-ip 192.0.2.7 --host api.example.com --path /v1/orders`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			r, a, err := o.asked(cmd, &o.requestOptions)
			if err != nil {
				return err
			}
			report, err := find.Client(cmd.Context(), a, r)
			if err != nil {
				return err
			}
			for _, k := range report.Rules {
				if k.NoKey == "" {
					k.Reset = o.resetLine(cmd, k)
				}
			}
			if err := o.output.print(cmd, report, func(b *strings.Builder) { printClient(b, report) }); err != nil {
				return err
			}
			switch {
			case report.IsPartial():
				return withHint(errors.New("some counters are not known: their lines say why"), "sluice status shows the proxies")
			case !report.Found():
				return withHint(errors.New("no rule has a key of this client"), "describe more of its requests: "+requestHint)
			}
			return nil
		},
	}, o.requestOptions.AddFlags, o.manageOptions.AddFlags)
}

// printClient prints the counters of a client, and what denies it.
func printClient(b *strings.Builder, r *find.Report) {
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

func printClientKey(b *strings.Builder, k *find.Key) {
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
	switch {
	case !k.IsCounted():
		b.WriteString("  nothing is counted: the key is unlimited\n")
	case k.Reset == "":
		fmt.Fprintf(b, "  to free it, repeat the flags of this find: sluice counters reset --rule %s\n", printable.Text(shellWord(k.Rule)))
	case k.Common:
		fmt.Fprintf(b, "  to free it, for all clients that share it: %s\n", printable.Text(k.Reset))
	default:
		fmt.Fprintf(b, "  to free it: %s\n", printable.Text(k.Reset))
	}
}

func counterRow(c *find.Counter) []string {
	row := []string{"  " + c.Proxy, c.Now()}
	if c.Error != "" {
		return row
	}
	denied := ""
	if c.Denied != nil {
		denied = strconv.FormatUint(uint64(*c.Denied), 10)
	}
	return append(row, usedText(c.Windows, c.Held, true), denied, c.Hash)
}
