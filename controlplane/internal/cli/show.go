package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// show asks the server and prints its answer: as JSON, or by text.
func show[T any](
	cmd *cobra.Command, o *serverOptions, path string, query url.Values, text func(*strings.Builder, *T),
) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	answer, err := call[T](cmd.Context(), c, http.MethodGet, path, query, content{})
	if err != nil {
		return err
	}
	return o.output.print(cmd, answer, func(b *strings.Builder) { text(b, answer) })
}

// listOptions are the flags of a command that lists the newest entries.
type listOptions struct {
	serverOptions
	limit int
}

// AddFlags adds the flags. Without --policy the command lists byDefault: one policy, or all.
func (o *listOptions) AddFlags(cmd *cobra.Command, byDefault string) {
	o.serverOptions.AddFlags(cmd)
	o.addPolicyNameFlag(cmd, byDefault)
	cmd.Flags().IntVar(&o.limit, "limit", 20, "how many to list at most, 0 for all")
}

// check rejects a limit that is negative.
func (o *listOptions) check() error {
	if o.limit < 0 {
		return usageError(fmt.Errorf("--limit %d is negative", o.limit), "give 0 for all")
	}
	return nil
}

func newHistoryCommand() *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List revisions, the newest first",
		Example: `  sluice history
  sluice history --limit 5 --policy edge
  sluice history --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return showHistory(cmd, &o) },
	}
	o.AddFlags(cmd, store.DefaultPolicy)
	return cmd
}

func showHistory(cmd *cobra.Command, o *listOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	query := policyQuery(o.policyName)
	if o.limit > 0 {
		query.Set("limit", strconv.Itoa(o.limit))
	}
	return show(cmd, &o.serverOptions, "/v1/policies", query, o.print)
}

func (o *listOptions) print(b *strings.Builder, h *api.History) {
	if len(h.Revisions) == 0 {
		b.WriteString(nothingApplied(o.policyName, h.Policies) + "\n")
		return
	}
	rows := [][]string{{"REVISION", "APPLIED", "PROXIES", "FILE", "BYTES", "SHA-256", "NOTE"}}
	for _, r := range h.Revisions {
		digest := r.SHA256[:min(12, len(r.SHA256))]
		rows = append(rows, []string{
			number(r.Number), moment(r.Created), reception(r), r.File, strconv.Itoa(r.Bytes), digest, note(r),
		})
	}
	printTable(b, rows)
}

// nothingApplied says that a policy has no revision, and which policies have.
func nothingApplied(name string, others []string) string {
	if len(others) == 0 {
		return "nothing has been applied yet"
	}
	return fmt.Sprintf("nothing has been applied to the policy %s yet; policies are: %s",
		cmp.Or(name, store.DefaultPolicy), strings.Join(others, ", "))
}

// reception says what proxies answered to a revision.
func reception(r store.Summary) string {
	switch {
	case r.Damaged:
		return "damaged"
	case r.Acked && r.Nacked:
		return "mixed"
	case r.Acked:
		return "accepted"
	case r.Nacked:
		return "refused"
	}
	return ""
}

func note(r store.Summary) string {
	var notes []string
	if r.RollbackOf != 0 {
		notes = append(notes, "rollback of "+number(r.RollbackOf))
	}
	if r.Rollout != nil {
		notes = append(notes, string(r.Rollout.State))
	}
	if r.Wasm != "" {
		notes = append(notes, "wasm "+r.Wasm)
	}
	return strings.Join(notes, ", ")
}

func newGetCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "get [REVISION]",
		Short: "Print a revision's policy as it was applied",
		Example: `  sluice get
  sluice get 3 > policy.yaml
  sluice get --policy edge
  sluice get 3 --output json   # with its number, time and digest`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return showRevision(cmd, args, &o) },
	}
	o.AddFlags(cmd)
	o.addPolicyNameFlag(cmd, store.DefaultPolicy)
	return cmd
}

func showRevision(cmd *cobra.Command, args []string, o *serverOptions) error {
	revision, err := revisionIn(args, api.Current)
	if err != nil {
		return err
	}
	return show(cmd, o, "/v1/policies/"+revision, policyQuery(o.policyName),
		func(b *strings.Builder, r *api.Revision) { b.WriteString(r.YAML) })
}

// revisionIn returns the argument if it is a revision, and the name of one without an argument.
func revisionIn(args []string, byName string) (string, error) {
	if len(args) == 0 || args[0] == byName {
		return byName, nil
	}
	if n, err := strconv.ParseUint(args[0], 10, 64); err != nil || n == 0 {
		return "", usageError(fmt.Errorf("%q is not a revision", args[0]),
			"give a number from 1; sluice history lists them")
	}
	return args[0], nil
}

func newAuditCommand() *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List who changed what, the newest first",
		Long: `List the changes that the control plane has stored and the backups that it has sent:
when, who asked, from which address, and for what. The log keeps 10,000 entries.`,
		Example: `  sluice audit
  sluice audit --limit 5 --policy edge
  sluice audit --limit 0 --output json   # all of them`,
		RunE: func(cmd *cobra.Command, _ []string) error { return audit(cmd, &o) },
	}
	o.AddFlags(cmd, "all")
	return cmd
}

func audit(cmd *cobra.Command, o *listOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	a, err := c.audit(cmd, policyQuery(o.policyName), o.limit)
	if err != nil {
		return err
	}
	return o.output.print(cmd, a, func(b *strings.Builder) { printAudit(b, a.Entries) })
}

func printAudit(b *strings.Builder, entries []store.Entry) {
	if len(entries) == 0 {
		b.WriteString("nothing has been changed yet\n")
		return
	}
	rows := [][]string{{"ID", "AT", "WHO", "FROM", "ACTION", "REVISION", "WHAT", "OUTCOME"}}
	for _, e := range entries {
		rows = append(rows, []string{
			number(e.ID), moment(e.At), access.Who(e.Who), e.From, e.Action, number(e.Revision), e.Text, e.Outcome,
		})
	}
	printTable(b, withPolicies(rows, 5, entries, func(e store.Entry) string { return e.Policy }))
}

// audit reads the newest entries, all of them if limit is 0, page by page.
func (c *client) audit(cmd *cobra.Command, query url.Values, limit int) (api.Audit, error) {
	all := api.Audit{Entries: []store.Entry{}}
	before := uint64(math.MaxUint64)
	for {
		size := api.MaxAudit
		if limit > 0 {
			size = min(size, limit-len(all.Entries))
		}
		query.Set("limit", strconv.Itoa(size))
		page, err := call[api.Audit](cmd.Context(), c, http.MethodGet, "/v1/audit", query, content{})
		if err != nil {
			return all, err
		}
		for i := range page.Entries {
			if page.Entries[i].ID >= before || i == size {
				return all, c.notOurs() // else this could go on for ever
			}
			before = page.Entries[i].ID
		}
		all.Entries = append(all.Entries, page.Entries...)
		if len(page.Entries) < size || len(all.Entries) == limit {
			return all, nil
		}
		query.Set("before", number(before))
	}
}

func newStatusCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the current revision and what each proxy runs",
		Long: `Show the current revision, which a new proxy gets. For each proxy show its state (STATE),
the revision that its process accepted last (RUNS) and the one that was sent to it last
(SENT). Its last rejection is shown until it accepts a newer revision. The table cuts
long texts, --output json does not.

A canary is shown with what it waits for, and with what each rule has denied on its
proxies and on the others since serve began to watch it. A canary that was aborted
automatically is shown with the reason, until the policy's next revision.

Proxies that disconnected are shown for an hour. If several processes use one node id,
their addresses are shown, or their certificates if these differ.`,
		Example: `  sluice status
  watch sluice status
  sluice status --policy edge
  sluice status --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &o, "/v1/status", policyQuery(o.policyName), printStatus)
		},
	}
	o.AddFlags(cmd)
	o.addPolicyNameFlag(cmd, "all")
	return cmd
}

func printStatus(w *strings.Builder, st *api.Status) {
	if len(st.Policies) == 0 {
		fmt.Fprintln(w, "nothing has been applied yet")
	}
	for i := range st.Policies {
		printPolicyStatus(w, &st.Policies[i])
	}
	printTroubles(w, st)
	if len(st.Proxies) == 0 {
		fmt.Fprintln(w, "no proxy is connected")
		return
	}
	rows := [][]string{{"PROXY", "STATE", "SINCE", "RUNS", "SENT", "ENVOY", "LAST NACK"}}
	processes := map[string]int{} // by node id
	for _, p := range st.Proxies {
		processes[p.Node]++
	}
	for _, p := range st.Proxies {
		name := proxyName(p.Node, p.SAN, processes[p.Node] > 1)
		rows = append(rows, []string{
			printable.Cut(name, maxProxyCell), printable.Cut(p.State, maxCell),
			moment(p.Since), number(p.Runs), number(p.Pushed), p.Envoy, lastNack(p),
		})
	}
	printTable(w, withPolicies(rows, 1, st.Proxies, func(p xds.ProxyStatus) string { return p.Policy }))
}

func printPolicyStatus(w *strings.Builder, p *api.PolicyStatus) {
	of := ofPolicy(p.Policy)
	printRevision(w, of, p.Current, "")
	if c := p.Canary; c != nil {
		share := fmt.Sprintf("%g%% on %d of %s", c.Percent, c.Runs, count(c.Of, "proxy", "proxies"))
		printRevision(w, of, p.Newest, ", a canary of "+share)
		fmt.Fprintf(w, "%scanary %s\n", of, printable.Text(c.Says))
		for _, r := range c.Seen {
			fmt.Fprintf(w, "%sso far: %s\n", of, printable.Text(r.String()))
		}
	} else if p.Newest != nil && p.Newest.Nacked {
		printRevision(w, of, p.Newest, ", refused: not current")
	}
	if a := p.Aborted; a != nil {
		printRevision(w, of, a, ", aborted by itself: "+printable.Text(a.Rollout.Why))
	}
	for _, number := range p.Damaged {
		fmt.Fprintf(w, "%srevision %d is damaged in the store and is not pushed: "+
			"apply the policy again, or restore a backup\n", of, number)
	}
}

// printTroubles prints what keeps this serve, or its proxies, from working as they should.
func printTroubles(w *strings.Builder, st *api.Status) {
	if st.CutOff != "" {
		fmt.Fprintln(w, "NOTHING CAN BE CHANGED HERE: "+printable.Text(st.CutOff))
	}
	if st.Apart != "" {
		fmt.Fprintln(w, "LIMITS OVER ALL PROXIES ARE NOT KEPT: "+printable.Text(st.Apart))
	}
	if st.Starting != "" {
		fmt.Fprintln(w, printable.Text(st.Starting))
	}
	proxies := func(n int) string { return strings.ToUpper(count(n, "connected proxy", "connected proxies")) }
	if st.Behind > 0 {
		fmt.Fprintf(w, "THIS SERVE IS BEHIND %s: see STATE; restore a backup of the newer store, "+
			"or apply again to replace what they run\n", proxies(st.Behind))
	}
	if st.Untaken > 0 {
		fmt.Fprintf(w, "NO POLICY IS FOR %s: see STATE; name them in the proxies section of a policy, "+
			"or apply a policy without a name\n", proxies(st.Untaken))
	}
}

const (
	// maxCell bounds the texts of a row, in bytes, so that columns stay in sight.
	maxCell = 80
	// maxProxyCell is longer: a name of a pod and its namespace must stay whole.
	maxProxyCell = 100
)

// printRevision prints a revision in a line, unless its summary cannot be read.
func printRevision(w io.Writer, of string, r *store.Summary, note string) {
	if r == nil || r.Damaged {
		return
	}
	name := printable.Text(printable.Cut(r.File, maxCell))
	fmt.Fprintf(w, "%srevision %d  %s  applied %s%s\n", of, r.Number, name, moment(r.Created), note)
	if r.Wasm != "" {
		fmt.Fprintf(w, "%sfilter module: %s\n", of, printable.Text(printable.Cut(r.Wasm, maxCell)))
	}
}

func lastNack(p xds.ProxyStatus) string {
	if p.Nacked == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d at %s: %s", p.Nacked, moment(p.NackedAt), printable.Cut(p.NackText, maxCell))
}
