package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

func newStatusCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the current revision and what each proxy runs",
		Long: `Show the current revision, which is the one a new proxy gets, and for each proxy
how it stands (STATE), the revision its process accepted last (RUNS), the one
sent to it last (SENT) and its last refusal, unless it has accepted a newer
revision since. The table cuts long texts, --output json does not.
A filter module that apply --wasm has named is shown with its revision.
Proxies that went away are shown for an hour. Where several processes use one node
id, their addresses are shown, or their certificates where these differ.`,
		Example: `  sluice status
  watch sluice status
  sluice status --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &o, "/v1/status", nil, printStatus)
		},
	}
	o.AddFlags(cmd)
	return cmd
}

func printStatus(w io.Writer, st *api.Status) error {
	if st.Current == nil && st.Newest == nil {
		fmt.Fprintln(w, "nothing has been applied yet")
	}
	printRevision(w, st.Current, "")
	if st.Newest != nil && st.Newest.Nacked {
		printRevision(w, st.Newest, ", refused: not current")
	}
	for _, number := range st.Damaged {
		fmt.Fprintf(w, "revision %d is damaged in the store and is not pushed: apply the policy again, or restore a backup\n", number)
	}
	if len(st.Proxies) == 0 {
		fmt.Fprintln(w, "no proxy is connected")
		return nil
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
	return printTable(w, rows)
}

const (
	// maxCell bounds the texts of a row, in bytes, so that columns stay in sight.
	maxCell = 80
	// maxProxyCell is longer: a name of a pod and its namespace must stay whole.
	maxProxyCell = 100
)

// printRevision prints a revision in a line, unless its summary cannot be read.
func printRevision(w io.Writer, r *store.Summary, note string) {
	if r != nil && !r.Damaged {
		fmt.Fprintf(w, "revision %d  %s  applied %s%s\n", r.Number, printable.Text(printable.Cut(r.File, maxCell)), moment(r.Created), note)
		if r.Wasm != "" {
			fmt.Fprintf(w, "filter module: %s\n", printable.Text(printable.Cut(r.Wasm, maxCell)))
		}
	}
}

func lastNack(p xds.ProxyStatus) string {
	if p.Nacked == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d at %s: %s", p.Nacked, moment(p.NackedAt), printable.Cut(p.NackText, maxCell))
}
