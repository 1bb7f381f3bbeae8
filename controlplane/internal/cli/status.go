package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

func newStatusCommand() *cobra.Command {
	var o serverOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the current revision and what each proxy runs",
		Long: `Show the current revision and, for each proxy, the revision its process
accepted last (RUNS), the one sent to it last (SENT) and the one it refused last.
Proxies that went away are shown for an hour. Where several processes use one node
id, their addresses are shown, or their certificates where these differ.`,
		Example: `  sluice status
  sluice status --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return show(cmd, &o, "/v1/status", nil, printStatus) },
	}
	o.AddFlags(cmd)
	return cmd
}

func printStatus(w io.Writer, st *api.Status) error {
	switch {
	case st.Current == nil:
		fmt.Fprintln(w, "nothing has been applied yet")
	case !st.Current.Damaged:
		fmt.Fprintf(w, "revision %d  %s  applied %s\n", st.Current.Number, printable.Text(st.Current.File), moment(st.Current.Created))
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
			proxyName(p.Node, p.SAN, of[p.Node] > 1), p.State(), moment(p.Since), number(p.Runs), number(p.Pushed), p.Envoy, lastNack(p),
		})
	}
	return printTable(w, rows)
}

func lastNack(p xds.ProxyStatus) string {
	if p.Nacked == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d at %s: %s", p.Nacked, moment(p.NackedAt), p.NackText)
}
