package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/describe"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// operationText is what help says of an operation, what its example has after the name, and the
// heads of the table of its answers.
type operationText struct {
	short, more, example string
	heads                []string
}

var (
	verdictHeads = []string{"PROXY", "ANSWER", "WINDOWS"}
	usedHeads    = []string{"PROXY", "USED", "WINDOWS"}
)

var operationTexts = map[string]operationText{
	"hit": {
		short:   "Count a hit as a request would, and say whether it was allowed",
		example: " --n 3",
		heads:   verdictHeads,
	},
	"peek": {
		short: "Say whether a hit would be allowed, without counting it",
		heads: verdictHeads,
	},
	"get": {
		short: "Show what is used",
		heads: usedHeads,
	},
	"inc": {
		short:   "Count units without asking whether they are allowed",
		example: " --n 5",
		heads:   usedHeads,
	},
	"set": {
		short:   "Set what is used",
		example: " --n 0 --window daily",
		heads:   usedHeads,
	},
	"reset": {
		short: "Forget a key, in all windows",
		more: `.

Give the rule and the key, or describe the client by one of its requests, as for sluice
counters find: with --rule its key in that rule is reset, with --all-rules its keys in
all rules, but not those that it shares with other clients.

Exits 1 if there was no such key.`,
		heads: []string{"PROXY", "ANSWER"},
	},
	"expires-at": {
		short: "Show when a key's tightest window starts anew",
		heads: []string{"PROXY", "EXPIRES AT", "WINDOWS"},
	},
	"clean": {
		short: "Free expired keys of one rule or of all",
		heads: []string{"PROXY", "FREED"},
	},
	"stats": {
		short: "Show keys, memory and metrics of one rule or of all",
		more: `.

Keys and bytes are the proxy's. Metrics are what all its workers have counted, with the
other workers' counts up to a second old; --output json has all of them.`,
		heads: []string{
			"PROXY", "RULE", "KEYS", "CAPACITY", "BYTES", "ALLOWED", "DENIED", "SHADOW DENIED", "EVICTED", "FLOOR DENIED",
		},
	},
	"top": {
		short: "Show the keys that one rule or all rules deny most",
		more: `: those of the last 10 to 20
minutes, of all proxies and their workers together, up to 32 of each rule. MODE says
whether the rule's denials are enforced, or are in shadow mode and deny nobody; with
enforce_percent, or where proxies run different policies, it is partly enforced.

Each key was denied at least DENIED times, and up to ERROR times more. The policy's
report_keys says how keys are shown: as hashes (the default), plain, or not at all. With
report_keys: hash a key has the same hash on all proxies of a control plane.

If a rule has a block, BLOCKED says for how long the key still is blocked, as counters get
does. That is not known of keys that are shown as hashes, or cut.`,
	},
}

func newCountersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Read and change counters in running proxies",
		Long: `Read and change counters in running proxies, through the management path that
the policy turns on:

  manage: {path: /.sluice/, port: 9902, token_sha256: "…"}   # printf %s "$TOKEN" | sha256sum

The control plane asks every connected proxy. For that it needs the management token
(sluice serve --manage-token-file), and each proxy an address where it can be asked
(sluice render envoy --manage). Changes are in the audit log. With --proxy this command
asks one proxy directly, with the token in a file. Such changes are not in the audit log.

The quota service has the counters of rules of scope cluster. The control plane asks its
own quota service, or the one on the store of sluice serve --quota-store URL. Then it asks
the proxies for the units that they have leased: these count as used, and proxies may
still spend them for at most 10 seconds. So set and reset are exact after 10 seconds.

It exits with 1 if a proxy did not do it, or if reset found no such key on any proxy.`,
	}
	for _, op := range manage.Operations {
		cmd.AddCommand(newOperationCommand(op))
	}
	cmd.AddCommand(newCountersFindCommand())
	return cmd
}

// countersOptions are the flags of one operation.
type countersOptions struct {
	askOptions
	op      manage.Operation
	subject manage.Subject

	client   describe.Client // of reset
	allRules bool            // of reset
}

// AddFlags adds the flags that the operation takes.
func (o *countersOptions) AddFlags(cmd *cobra.Command) {
	o.askOptions.AddFlags(cmd)
	o.addSubjectFlags(cmd)
	if o.op.Name == "reset" {
		o.client.AddFlags(cmd.Flags())
		cmd.Flags().BoolVar(&o.allRules, "all-rules", false,
			"reset the described client in all rules in which it has a key of its own")
	}
}

func (o *countersOptions) addSubjectFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	s := &o.subject
	switch {
	case o.op.Name == "reset":
		f.StringVar(&s.Rule, "rule", "", "`NAME` of the rule (required without --all-rules)")
	case o.op.Keyed:
		f.StringVar(&s.Rule, "rule", "", "`NAME` of the rule")
		markRequired(cmd, "rule")
	default:
		f.StringVar(&s.Rule, "rule", "", "`NAME` of the rule (default: all rules)")
	}
	if o.op.Keyed {
		f.StringArrayVar(&s.Key, "key", nil, "a part of the key as `TEXT`; may be repeated, in the rule's order; "+
			policy.MissingPart+" stands for a part that the request lacks")
	}
	switch {
	case o.op.NeedsUnits: // without a default: nobody means 1 by leaving it out
		f.StringVar(&s.N, "n", "", "`UNITS`")
		markRequired(cmd, "n")
	case o.op.Units:
		f.StringVar(&s.N, "n", "1", "`UNITS`")
	}
	if o.op.Limits {
		f.StringArrayVar(&s.Limits, "limit", nil, "`NUMBER` that a request would give as the limit, where the policy "+
			"reads it from requests; may be repeated, in the rule's order (default: the policy's default)")
	}
	if o.op.Window {
		f.StringVar(&s.Window, "window", "", "`NAME` or index of the window (default: all)")
	}
}

func newOperationCommand(op manage.Operation) *cobra.Command {
	o := countersOptions{op: op}
	text := operationTexts[op.Name]
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
		RunE:    func(cmd *cobra.Command, _ []string) error { return counters(cmd, &o) },
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

func counters(cmd *cobra.Command, o *countersOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if o.allRules || !o.client.IsZero() {
		return resetClient(cmd, o)
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
	report, err := o.ask(cmd.Context(), a, query)
	if err != nil {
		return err
	}
	if err := o.output.print(cmd, report, func(b *strings.Builder) { printAnswers(b, o.op, report) }); err != nil {
		return err
	}
	if err := failures(report.Proxies, func(r *manage.Row) *manage.Asked { return &r.Asked }); err != nil {
		return err
	}
	return o.judge(report)
}

// ask does the operation.
func (o *countersOptions) ask(ctx context.Context, a clients.Asker, query url.Values) (*api.Counters, error) {
	if o.op.Name == "top" {
		return clients.Top(ctx, a, query)
	}
	return a.Counters(ctx, o.op, query)
}

// judge is the error of proxies that get no answer from the quota service, and of a reset that
// found no key.
func (o *countersOptions) judge(report *api.Counters) error {
	silent := 0
	for _, r := range report.Proxies {
		if r.Silent != "" {
			silent++
		}
	}
	switch {
	case silent > 0:
		return withHint(
			fmt.Errorf("the quota service does not answer %d of %s: on_unavailable decides there",
				silent, count(len(report.Proxies), "proxy", "proxies")),
			"the figures lack what these proxies count, and a change does not reach them; sluice explain says what they decide")
	case o.op.Name == "reset" && !clients.WasReset(report):
		return errNothingReset
	}
	return nil
}
