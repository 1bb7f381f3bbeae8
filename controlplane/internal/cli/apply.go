package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

type applyOptions struct {
	files []string
	serverOptions
	wasm string
	wait time.Duration
}

func newApplyCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE [-f FILE]...",
		Short: "Store a policy as a new revision and push it to its proxies",
		Long: `Check a policy, store it as a new revision and push it to every connected proxy that it
is for: those that proxies in the file says, or that no other policy takes. Of several
files all become revisions together, or none does. It prints which counters restart, are
new or vanish, and what each proxy answers.
It exits with 1 if a proxy refuses the policy, and so keeps its last good one, or does
not answer in time.
With --canary only a part of the policy's proxies get the revision, at least one that is
connected, until sluice promote or sluice abort. Until then apply and rollback of that
policy are refused. A canary stalls if one of its proxies refuses it or crashes, or if a rule
denies too much there: then it is not promoted by itself. sluice status shows what it
denies, and what it waits for.`,
		Example: `  sluice apply -f edge.yaml -f inner.yaml --server https://sluice.example:18080 --token-file token
  sluice apply -f policy.yaml --wasm /opt/sluice/sluice-2.wasm   # also change the filter's binary
  sluice apply -f policy.yaml --wasm ''                          # back to the node's own or serve --wasm
  sluice apply -f policy.yaml --canary 10% --promote-after 5m --max-denied 2% --abort-on-denied`,
		RunE: func(cmd *cobra.Command, _ []string) error { return apply(cmd, o) },
	}
	cmd.Flags().StringArrayVarP(&o.files, "file", "f", nil, "policy `FILE`, - for standard input (required); again for each further policy")
	o.AddFlags(cmd, "")
	cmd.Flags().StringVar(&o.wasm, "wasm", "", "absolute `PATH` of the filter's binary on the proxies' machines; it goes before the node's own and serve --wasm (default: the one in force stays)")
	addWaitFlag(cmd, &o.wait)
	cmd.Flags().String("canary", "", "`SHARE` of the policy's proxies that get the revision until it is promoted or aborted, such as 10%")
	cmd.Flags().Duration("promote-after", 0, "promote the canary by itself after this `TIME` under watch, from 1s, if no proxy has refused it, none of their filters has crashed, and no rule denies too much there")
	cmd.Flags().String("max-denied", "", "`SHARE` of its requests that a rule may deny on the canary beyond what it "+
		"denies on the other proxies (default 2%); from 100 requests on the canary stalls above it")
	cmd.Flags().Bool("abort-on-denied", false,
		"abort the canary by itself where it would stall because a rule denies too much")
	return cmd
}

func addWaitFlag(cmd *cobra.Command, wait *time.Duration) {
	cmd.Flags().DurationVar(wait, "wait", 30*time.Second,
		fmt.Sprintf("how long to wait for the proxies' answers, 0 for not at all, at most %s", api.MaxWait))
}

func checkWait(wait time.Duration) error {
	if wait < 0 || wait > api.MaxWait {
		return usageError(fmt.Errorf("--wait %s is not from 0 to %s", wait, api.MaxWait), "0 is not to wait at all")
	}
	return nil
}

func apply(cmd *cobra.Command, o applyOptions) error {
	if err := api.CheckWasm(o.wasm); err != nil {
		return usageError(err, "--wasm is read by Envoy, not by this command")
	}
	if err := checkWait(o.wait); err != nil {
		return err
	}
	query := url.Values{}
	for flag, parameter := range map[string]string{
		"canary": "canary", "promote-after": "promote_after",
		"max-denied": "max_denied", "abort-on-denied": "abort_on_denied",
	} {
		if f := cmd.Flags().Lookup(flag); f.Changed {
			query.Set(parameter, f.Value.String())
		}
	}
	if len(query) > 0 && len(o.files) > 1 {
		return usageError(errors.New("--canary is for one policy"), "apply the files one by one")
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	var files []policyText
	for _, file := range o.files {
		read, err := readPolicy(cmd, file, true)
		if err != nil {
			return err
		}
		files = append(files, read)
	}
	var wasm *string
	if cmd.Flags().Changed("wasm") {
		wasm = &o.wasm
	}
	applied, err := c.apply(cmd.Context(), files, wasm, query)
	if err != nil {
		return err
	}
	r := rollOut{client: c, output: o.output, wait: o.wait, done: "applied"}
	if share := query.Get("canary"); share != "" {
		end := ", until sluice promote or sluice abort"
		if after := query.Get("promote_after"); after != "" {
			end = ", will be promoted after " + after + " unless it stalls"
		}
		if query.Get("abort_on_denied") == "true" {
			end += "; it is aborted by itself if a rule denies too much"
		}
		r.done += " as a canary of " + share + end
	}
	return r.run(cmd, applied...)
}

// apply makes policies revisions: all of them, or none.
func (c *client) apply(ctx context.Context, files []policyText, wasm *string, query url.Values) ([]api.Applied, error) {
	if len(files) > 1 {
		changes := api.Changes{Wasm: wasm}
		for _, f := range files {
			changes.Policies = append(changes.Policies, api.File{Name: f.name, YAML: string(f.text)})
		}
		body, err := json.Marshal(changes)
		if err != nil {
			return nil, err
		}
		done, err := call[api.AppliedChanges](ctx, c, http.MethodPost, "/v1/changes", nil, body)
		return done.Applied, err
	}
	query.Set("file", files[0].name)
	if wasm != nil {
		query.Set("wasm", *wasm)
	}
	done, err := call[api.Applied](ctx, c, http.MethodPost, "/v1/policies", query, files[0].text)
	return []api.Applied{*done}, err
}

// rollOut watches new revisions reach the proxies.
type rollOut struct {
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
func (r rollOut) run(cmd *cobra.Command, applied ...api.Applied) error {
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
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+of+"which counters restart is not known: the server cannot read the revision before")
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

// follow prints the outcomes on the proxies as they come and judges them.
func (r rollOut) follow(interrupt context.Context, text io.Writer, result *rolledOut) error {
	query := policyQuery(result.Policy)
	query.Set("timeout", r.wait.String())
	ctx, cancel := context.WithTimeout(interrupt, r.wait+requestTimeout)
	defer cancel()
	body, err := r.client.open(ctx, http.MethodGet, "/v1/revisions/"+number(result.Number)+"/wait", query, "", nil)
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
			return withHint(fmt.Errorf("revision %d is stored, but the wait for the proxies was cut short: %w", result.Number, err),
				"sluice status shows what they run")
		}
		if e.Outcome != nil {
			result.Outcomes = append(result.Outcomes, *e.Outcome)
			printOutcome(text, *e.Outcome)
		}
		if e.Done {
			result.Missing = append(result.Missing, e.Missing...)
			break
		}
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

// proxyName names a proxy for people: by its certificate too where another has
// the same node id.
func proxyName(node, san string, shared bool) string {
	if !shared || san == "" {
		return node
	}
	return node + " (" + san + ")"
}

func printOutcome(w io.Writer, v xds.ProxyOutcome) {
	words := map[xds.Outcome]string{
		xds.Acked:        "ACK",
		xds.Nacked:       "NACK",
		xds.Superseded:   "superseded: a newer revision was there first",
		xds.Withheld:     "not asked: another proxy refused it",
		xds.Unsent:       "not sent",
		xds.Waiting:      "no answer",
		xds.Disconnected: "disconnected before it answered",
	}
	line := words[v.Outcome]
	if v.Text != "" {
		line += "  " + printable.Text(v.Text)
	}
	if v.Fallback != 0 {
		line += fmt.Sprintf("  (withdrawn; gets revision %d again)", v.Fallback)
	}
	fmt.Fprintf(w, "%-24s %s\n", printable.Text(proxyName(v.Node, v.SAN, v.Shared)), line)
}

func (r rollOut) judge(result *rolledOut) error {
	n := map[xds.Outcome]int{}
	for _, v := range result.Outcomes {
		n[v.Outcome]++
	}
	revision := result.Number
	proxies := func(n int) string { return count(n, "proxy", "proxies") }
	switch {
	case n[xds.Nacked] > 0:
		hint := "the lines with NACK say why; sluice status repeats it as LAST NACK"
		if slices.ContainsFunc(result.Outcomes, func(o xds.ProxyOutcome) bool { return strings.Contains(o.Text, "Unable to create Wasm plugin") }) {
			hint = `where it says "Unable to create Wasm plugin", only the proxy's log says why`
		}
		return withHint(fmt.Errorf("revision %d was refused by %s; the last good one stays in force there", revision, proxies(n[xds.Nacked])), hint)
	case n[xds.Unsent] > 0:
		return withHint(fmt.Errorf("revision %d could not be sent to %s", revision, proxies(n[xds.Unsent])),
			`the lines with "not sent" say why`)
	case len(result.Missing) > 0:
		return withHint(fmt.Errorf("revision %d: no answer from %s within %s", revision, proxies(len(result.Missing)), r.wait),
			"sluice status shows what each proxy runs; a large filter binary blocks Envoy for seconds")
	case n[xds.Withheld] > 0:
		return withHint(fmt.Errorf("revision %d was refused by a proxy and accepted by none", revision), "sluice status shows which one")
	}
	return nil
}

func newPromoteCommand() *cobra.Command {
	return newMoveCommand("promoted", "promote", &cobra.Command{
		Short: "Give all proxies of a policy the revision of its canary",
		Long: `End the canary that apply --canary began: all other proxies of the policy get its
revision, too. This is so for one that has stalled, as well. It waits for the proxies
and exits as apply does.`,
		Example: `  sluice promote
  sluice promote --policy edge`,
	})
}

func newAbortCommand() *cobra.Command {
	return newMoveCommand("in force again", "abort", &cobra.Command{
		Short: "Take the revision of a policy's canary back",
		Long: `End the canary that apply --canary began: its proxies get the revision again that the
others have kept. The history keeps what was aborted, and nothing falls back on it.
It waits for the proxies and exits as apply does.`,
		Example: `  sluice abort
  sluice abort --policy edge`,
	})
}

func newRollbackCommand() *cobra.Command {
	return newMoveCommand("applied", "rollback [REVISION]", &cobra.Command{
		Short: "Apply an earlier revision again",
		Long: `Store an earlier revision's policy and binary as a new revision and push it.
Without REVISION it takes the newest earlier revision that a proxy accepted, or
the one before the current if none was accepted. After a rollback, earlier means
before the revision that is in force again. The history keeps all revisions.`,
		Example: `  sluice rollback        # to what was good before
  sluice rollback 3
  sluice rollback --policy edge`,
		Args: cobra.MaximumNArgs(1),
	})
}

// newMoveCommand has a command give a policy's proxies a revision that is stored. done is
// what the revision is then.
func newMoveCommand(done, use string, cmd *cobra.Command) *cobra.Command {
	var o serverOptions
	var wait time.Duration
	cmd.Use = use
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkWait(wait); err != nil {
			return err
		}
		path := "/v1/" + cmd.Name()
		if cmd.Name() == "rollback" {
			revision, err := revisionIn(args, api.Previous)
			if err != nil {
				return err
			}
			path += "/" + revision
		}
		c, err := o.client()
		if err != nil {
			return err
		}
		now, err := call[api.Applied](cmd.Context(), c, http.MethodPost, path, policyQuery(o.policyName), nil)
		if err != nil {
			return err
		}
		return rollOut{client: c, output: o.output, wait: wait, done: done}.run(cmd, *now)
	}
	o.AddFlags(cmd, store.DefaultPolicy)
	addWaitFlag(cmd, &wait)
	return cmd
}
