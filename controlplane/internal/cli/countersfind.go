package cli

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// clientReport is what find prints as JSON.
type clientReport struct {
	DeniedBy []string       `json:"denied_by"` // rules that deny the client now
	Rules    []*clientKey   `json:"rules"`
	Failed   []manage.Asked `json:"failed,omitempty"` // proxies that did not say their keys
}

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
it requests: a rule says which requests it is for. A credential is never printed, only the hash that counters top
shows of the key.

Exits 1 if no rule has a key of the client.`,
		Example: `  sluice counters find --header x-user-id=alice --client-ip 192.0.2.7

  sluice counters find --client-ip 192.0.2.7 --host api.example.com --path /v1/orders`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			keys, failed, a, err := o.clientKeys(cmd, &o.requestOptions)
			if err != nil {
				return err
			}
			report := clientReport{DeniedBy: []string{}, Rules: keys, Failed: failed}
			found := false
			for _, k := range keys {
				if k.NoKey == "" {
					found = true
					if err := k.read(cmd.Context(), a); err != nil {
						return err
					}
				}
				if k.denies() && !slices.Contains(report.DeniedBy, k.Rule) {
					report.DeniedBy = append(report.DeniedBy, k.Rule)
				}
			}
			if found {
				addDenials(cmd, a, keys)
			}
			err = o.output.print(cmd, &report, report.print)
			if err == nil {
				err = report.judge(found)
			}
			return err
		},
	}, o.requestOptions.AddFlags, o.manageOptions.AddFlags)
}

// isPartial reports whether some counters are not known.
func (r *clientReport) isPartial() bool {
	return len(r.Failed) > 0 || slices.ContainsFunc(r.Rules, func(k *clientKey) bool {
		return k.Error != "" || slices.ContainsFunc(k.Counters, func(c clientCounter) bool { return c.Error != "" })
	})
}

// judge is the error of what was not found, or not known.
func (r *clientReport) judge(found bool) error {
	switch {
	case r.isPartial():
		return withHint(errors.New("some counters are not known: their lines say why"), "sluice status shows the proxies")
	case !found:
		return withHint(errors.New("no rule has a key of this client"), "describe more of its requests: "+requestHint)
	}
	return nil
}

// addDenials adds how often keys were denied lately, as far as proxies keep that.
func addDenials(cmd *cobra.Command, a *asker, keys []*clientKey) {
	report, err := a.counters(cmd.Context(), operationOf("top"), url.Values{})
	if err != nil {
		return // the policy keeps none
	}
	for _, k := range keys {
		for i := range k.Counters {
			k.Counters[i].addDenials(k, report)
		}
	}
}

func (c *clientCounter) addDenials(k *clientKey, top *api.Counters) {
	for _, row := range top.Proxies {
		for _, rule := range row.Denials {
			for _, of := range rule.Keys {
				is := of.Hash == c.Hash || of.Hash == "" && !of.Cut && slices.Equal(manage.KeyParts(&of), k.parts)
				if row.Proxy == c.Proxy && rule.Rule == k.Rule && is {
					c.Denied = &of.Denied
				}
			}
		}
	}
}

func (r *clientReport) print(b *strings.Builder) {
	switch {
	case len(r.DeniedBy) > 0:
		fmt.Fprintf(b, "denied now by %s\n", printable.Text(strings.Join(r.DeniedBy, ", ")))
	case r.isPartial():
		b.WriteString("not known whether a rule denies this client now\n")
	default:
		b.WriteString("no rule denies this client now\n")
	}
	for _, k := range r.Rules {
		k.print(b)
	}
	for _, f := range r.Failed {
		fmt.Fprintf(b, "\n%s failed: %s\n", printable.Text(f.Proxy), printable.Text(f.Error))
	}
}

func (k *clientKey) print(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", printable.Text(k.Rule))
	if k.NoKey != "" {
		fmt.Fprintf(b, "  no key: %s\n", printable.Text(k.NoKey))
	} else {
		fmt.Fprintf(b, "  key: %s\n", printable.Text(keySentence(k.Key)))
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
		table = append(table, k.Counters[i].cells())
	}
	printTable(b, table)
	switch {
	case !k.isCounted():
		b.WriteString("  nothing is counted: the key is unlimited\n")
	case k.Reset == "":
		fmt.Fprintf(b, "  to free it, repeat the flags of this find: sluice counters reset --rule %s\n", printable.Text(shellWord(k.Rule)))
	case k.Common:
		fmt.Fprintf(b, "  to free it, for all clients that share it: %s\n", printable.Text(k.Reset))
	default:
		fmt.Fprintf(b, "  to free it: %s\n", printable.Text(k.Reset))
	}
}

func keySentence(key []answer.KeyPart) string {
	if len(key) == 0 {
		return "none, one counter for all"
	}
	parts := make([]string, len(key))
	for i, p := range key {
		parts[i] = p.Part + " = " + partText(p)
	}
	return strings.Join(parts, ", ")
}

func (c *clientCounter) cells() []string {
	denied := ""
	if c.Denied != nil {
		denied = strconv.FormatUint(uint64(*c.Denied), 10)
	}
	switch {
	case c.Error != "":
		return []string{"  " + c.Proxy, "failed: " + c.Error}
	case c.Allowed == nil:
		return []string{"  " + c.Proxy, "holds " + strconv.FormatInt(*c.Holds, 10), "", denied, c.Hash}
	}
	cells := verdictCells(c.row)
	now := cells[1]
	if c.Override != "" {
		now += ", override " + c.Override
	}
	return []string{"  " + c.Proxy, now, windowsText(c.Windows, true), denied, c.Hash}
}
