package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// rollout watches new revisions reach the proxies.
type rollout struct {
	client *client
	output output
	wait   time.Duration
	done   string // what has become of the revisions, in words
}

// rolledOut is what apply and rollback print as JSON.
type rolledOut struct {
	api.Applied
	Outcomes []xds.ProxyOutcome `json:"verdicts"`
	Missing  []xds.ProxyOutcome `json:"missing"`
}

// run prints what was applied together, and waits for the proxies.
func (r *rollout) run(cmd *cobra.Command, applied ...api.Applied) error {
	text := cmd.OutOrStdout()
	if r.output == outputJSON {
		text = io.Discard
	}
	results := make([]rolledOut, len(applied))
	for i := range applied {
		results[i] = rolledOut{Applied: applied[i], Outcomes: []xds.ProxyOutcome{}, Missing: []xds.ProxyOutcome{}}
		printApplied(cmd, text, &applied[i], r.done)
	}
	var failed error
	for i := range results {
		if r.wait > 0 {
			failed = cmp.Or(failed, r.follow(cmd.Context(), text, &results[i]))
		}
	}
	switch {
	case r.output != outputJSON:
		return failed
	case len(results) == 1:
		return errors.Join(printJSON(cmd.OutOrStdout(), results[0]), failed)
	}
	return errors.Join(printJSON(cmd.OutOrStdout(), map[string]any{"applied": results}), failed)
}

func printApplied(cmd *cobra.Command, text io.Writer, applied *api.Applied, done string) {
	printChanges(text, applied.Changes)
	of := ofPolicy(applied.Policy)
	if applied.Changes == nil && applied.Replaces > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(),
			"warning: "+of+"which counters restart is not known: the server cannot read the revision before")
	}
	for _, warning := range applied.ProxyWarnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+of+printable.Text(warning))
	}
	fmt.Fprintf(text, "%srevision %d %s", of, applied.Number, done)
	if applied.RollbackOf != 0 {
		fmt.Fprintf(text, ", a rollback of %d", applied.RollbackOf)
	}
	fmt.Fprintln(text)
	if applied.Wasm != "" {
		fmt.Fprintf(text, "filter module: %s\n", printable.Text(applied.Wasm))
	}
}

// follow prints the replies of the proxies as they come, and then those that are missing.
func (r *rollout) follow(interrupt context.Context, text io.Writer, result *rolledOut) error {
	if err := r.readOutcomes(interrupt, text, result); err != nil {
		return err
	}
	for _, v := range result.Missing {
		printOutcome(text, v)
	}
	if len(result.Outcomes)+len(result.Missing) == 0 {
		which := "no proxy is connected"
		if of := ofPolicy(result.Policy); of != "" {
			which = of + "no proxy of it is connected"
		}
		fmt.Fprintln(text, which+"; each gets it when it connects, as sluice status shows")
	}
	return r.judge(result)
}

func (r *rollout) readOutcomes(interrupt context.Context, text io.Writer, result *rolledOut) error {
	query := policyQuery(result.Policy)
	query.Set("timeout", r.wait.String())
	ctx, cancel := context.WithTimeout(interrupt, r.wait+requestTimeout)
	defer cancel()
	body, err := r.client.open(ctx, http.MethodGet, "/v1/revisions/"+number(result.Number)+"/wait", query, content{})
	if err != nil {
		return err
	}
	defer body.Close()
	lines := decoder(body)
	for {
		var e api.WaitEvent
		if err := lines.Decode(&e); err != nil {
			if interrupt.Err() != nil {
				err = errInterrupted
			}
			return withHint(
				fmt.Errorf("revision %d is stored, but the wait for the proxies was cut short: %w", result.Number, err),
				"sluice status shows what they run")
		}
		if e.Outcome != nil {
			result.Outcomes = append(result.Outcomes, *e.Outcome)
			printOutcome(text, *e.Outcome)
		}
		if e.Done {
			result.Missing = append(result.Missing, e.Missing...)
			return nil
		}
	}
}

// proxyName names a proxy for people: with its certificate's name, if others share its node id.
func proxyName(node, san string, shared bool) string {
	if !shared || san == "" {
		return node
	}
	return node + " (" + san + ")"
}

// outcomeWords are what became of a revision at a proxy.
var outcomeWords = map[xds.Outcome]string{
	xds.Acked:        "ACK",
	xds.Nacked:       "NACK",
	xds.Superseded:   "superseded: a newer revision was there first",
	xds.Withheld:     "not asked: another proxy refused it",
	xds.Unsent:       "not sent",
	xds.Waiting:      "no answer",
	xds.Disconnected: "disconnected before it answered",
}

func printOutcome(w io.Writer, v xds.ProxyOutcome) {
	line := outcomeWords[v.Outcome]
	if v.Text != "" {
		line += "  " + printable.Text(v.Text)
	}
	if v.Fallback != 0 {
		line += fmt.Sprintf("  (withdrawn; gets revision %d again)", v.Fallback)
	}
	fmt.Fprintf(w, "%-24s %s\n", printable.Text(proxyName(v.Node, v.SAN, v.Shared)), line)
}

// judge is the error of a revision that not all proxies have accepted.
func (r *rollout) judge(result *rolledOut) error {
	n := map[xds.Outcome]int{}
	for _, v := range result.Outcomes {
		n[v.Outcome]++
	}
	revision := result.Number
	proxies := func(n int) string { return count(n, "proxy", "proxies") }
	switch {
	case n[xds.Nacked] > 0:
		text := "revision %d was refused by %s; the last good one stays in force there"
		return withHint(fmt.Errorf(text, revision, proxies(n[xds.Nacked])), nackHint(result.Outcomes))
	case n[xds.Unsent] > 0:
		return withHint(fmt.Errorf("revision %d could not be sent to %s", revision, proxies(n[xds.Unsent])),
			`the lines with "not sent" say why`)
	case len(result.Missing) > 0:
		missing := proxies(len(result.Missing))
		return withHint(fmt.Errorf("revision %d: no answer from %s within %s", revision, missing, r.wait),
			"sluice status shows what each proxy runs; a large filter binary blocks Envoy for seconds")
	case n[xds.Withheld] > 0:
		return withHint(fmt.Errorf("revision %d was refused by a proxy and accepted by none", revision),
			"sluice status shows which one")
	}
	return nil
}

func nackHint(outcomes []xds.ProxyOutcome) string {
	const noPlugin = "Unable to create Wasm plugin"
	if slices.ContainsFunc(outcomes, func(o xds.ProxyOutcome) bool { return strings.Contains(o.Text, noPlugin) }) {
		return `where it says "` + noPlugin + `", only the proxy's log says why`
	}
	return "the lines with NACK say why; sluice status repeats it as LAST NACK"
}

// moveOptions are the flags of promote, abort and rollback: they give a policy's proxies a
// revision that is stored.
type moveOptions struct {
	serverOptions
	wait waitOptions
}

// AddFlags adds the flags.
func (o *moveOptions) AddFlags(cmd *cobra.Command) {
	o.serverOptions.AddFlags(cmd)
	o.addPolicyNameFlag(cmd, store.DefaultPolicy)
	o.wait.AddFlags(cmd)
}

func newPromoteCommand() *cobra.Command {
	var o moveOptions
	cmd := &cobra.Command{
		Use:   "promote",
		Short: "Give all proxies of a policy the revision of its canary",
		Long: `End the canary that apply --canary began: all other proxies of the policy get its
revision too, even if the canary has stalled. It waits for the proxies and exits as
apply does.`,
		Example: `  sluice promote
  sluice promote --policy edge`,
		RunE: func(cmd *cobra.Command, _ []string) error { return move(cmd, &o, "/v1/promote", "promoted") },
	}
	o.AddFlags(cmd)
	return cmd
}

func newAbortCommand() *cobra.Command {
	var o moveOptions
	cmd := &cobra.Command{
		Use:   "abort",
		Short: "Take back the revision of a policy's canary",
		Long: `End the canary that apply --canary began: its proxies get the revision that the other
proxies have kept. The history keeps the aborted revision, but no proxy falls back to
it. It waits for the proxies and exits as apply does.`,
		Example: `  sluice abort
  sluice abort --policy edge`,
		RunE: func(cmd *cobra.Command, _ []string) error { return move(cmd, &o, "/v1/abort", "in force again") },
	}
	o.AddFlags(cmd)
	return cmd
}

func newRollbackCommand() *cobra.Command {
	var o moveOptions
	cmd := &cobra.Command{
		Use:   "rollback [REVISION]",
		Short: "Apply an earlier revision again",
		Long: `Store the policy and the binary of an earlier revision as a new revision and push it.
Without REVISION it takes the newest earlier revision that a proxy has accepted, or the
one before the current revision if none was accepted. After a rollback, earlier means
before the revision that is in force again. The history keeps all revisions.`,
		Example: `  sluice rollback        # to what was good before
  sluice rollback 3
  sluice rollback --policy edge`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := revisionIn(args, api.Previous)
			if err != nil {
				return err
			}
			return move(cmd, &o, "/v1/rollback/"+revision, "applied")
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// move asks for a revision by a path of the API and waits for the proxies. Done is what the
// revision is then.
func move(cmd *cobra.Command, o *moveOptions, path, done string) error {
	if err := o.wait.check(); err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	now, err := call[api.Applied](cmd.Context(), c, http.MethodPost, path, policyQuery(o.policyName), content{})
	if err != nil {
		return err
	}
	r := rollout{client: c, output: o.output, wait: o.wait.timeout, done: done}
	return r.run(cmd, *now)
}
