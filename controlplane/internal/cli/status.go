package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

func newStatusCommand() *cobra.Command {
	var o serverOptions
	return with(&cobra.Command{
		Use:   "status",
		Short: "Show the current revision and what each proxy runs",
		Long: `Show the current revision, which is the one a new proxy gets, and for each proxy
how it stands (STATE), the revision its process accepted last (RUNS), the one
sent to it last (SENT) and its last refusal, unless it has accepted a newer
revision since. The table cuts long texts, --output json does not.
A canary is shown with what it waits for, and with what each rule has denied on its
proxies and on others since serve has watched it.
Proxies that went away are shown for an hour. Where several processes use one node
id, their addresses are shown, or their certificates where these differ.`,
		Example: `  sluice status
  watch sluice status
  sluice status --policy edge
  sluice status --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &o, "/v1/status", policyQuery(o.policyName), printStatus)
		},
	}, func(cmd *cobra.Command) { o.AddFlags(cmd, "all") })
}

func printStatus(w *strings.Builder, st *api.Status) {
	if len(st.Policies) == 0 {
		fmt.Fprintln(w, "nothing has been applied yet")
	}
	for _, p := range st.Policies {
		of := ofPolicy(p.Policy)
		printRevision(w, of, p.Current, "")
		if c := p.Canary; c != nil {
			printRevision(w, of, p.Newest, fmt.Sprintf(", a canary of %g%% on %d of %s", c.Percent, c.Runs, count(c.Connected, "proxy", "proxies")))
			fmt.Fprintf(w, "%scanary %s\n", of, printable.Text(c.Says))
			for _, r := range c.Seen {
				fmt.Fprintf(w, "%scanary: %s\n", of, printable.Text(r.String()))
			}
		} else if p.Newest != nil && p.Newest.Nacked {
			printRevision(w, of, p.Newest, ", refused: not current")
		}
		for _, number := range p.Damaged {
			fmt.Fprintf(w, "%srevision %d is damaged in the store and is not pushed: apply the policy again, or restore a backup\n", of, number)
		}
	}
	if st.CutOff != "" {
		fmt.Fprintln(w, "NOTHING CAN BE CHANGED HERE: "+printable.Text(st.CutOff))
	}
	if st.Behind > 0 {
		fmt.Fprintf(w, "THIS SERVE IS BEHIND %s: see STATE; restore a backup of the newer store, or apply again to replace what they run\n",
			strings.ToUpper(count(st.Behind, "connected proxy", "connected proxies")))
	}
	if st.Untaken > 0 {
		fmt.Fprintf(w, "NO POLICY IS FOR %s: see STATE; name them in the proxies of a policy, or apply one without a name\n",
			strings.ToUpper(count(st.Untaken, "connected proxy", "connected proxies")))
	}
	if len(st.Proxies) == 0 {
		fmt.Fprintln(w, "no proxy is connected")
		return
	}
	rows := [][]string{{"PROXY", "STATE", "SINCE", "RUNS", "SENT", "ENVOY", "LAST NACK"}}
	of := map[string]int{}
	for _, p := range st.Proxies {
		of[p.Node]++
	}
	for _, p := range st.Proxies {
		rows = append(rows, []string{
			printable.Cut(proxyName(p.Node, p.SAN, of[p.Node] > 1), maxProxyCell), printable.Cut(p.State, maxCell),
			moment(p.Since), number(p.Runs), number(p.Pushed), p.Envoy, lastNack(p),
		})
	}
	printTable(w, withPolicies(rows, 1, st.Proxies, func(p xds.ProxyStatus) string { return p.Policy }))
}

const (
	// maxCell bounds the texts of a row, in bytes, so that columns stay in sight.
	maxCell = 80
	// maxProxyCell is longer: a name of a pod and its namespace must stay whole.
	maxProxyCell = 100
)

// printRevision prints a revision in a line, unless its summary cannot be read.
func printRevision(w io.Writer, of string, r *store.Summary, note string) {
	if r != nil && !r.Damaged {
		fmt.Fprintf(w, "%srevision %d  %s  applied %s%s\n", of, r.Number, printable.Text(printable.Cut(r.File, maxCell)), moment(r.Created), note)
		if r.Wasm != "" {
			fmt.Fprintf(w, "%sfilter module: %s\n", of, printable.Text(printable.Cut(r.Wasm, maxCell)))
		}
	}
}

func lastNack(p xds.ProxyStatus) string {
	if p.Nacked == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d at %s: %s", p.Nacked, moment(p.NackedAt), printable.Cut(p.NackText, maxCell))
}
