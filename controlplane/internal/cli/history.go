package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

type historyOptions struct {
	clientOptions
	output output
	limit  int
}

func newHistoryCommand() *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List revisions, the newest first",
		Example: `  sluice history
  sluice history --limit 5
  sluice history --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return history(cmd, o) },
	}
	o.AddFlags(cmd)
	o.output.AddFlags(cmd)
	cmd.Flags().IntVar(&o.limit, "limit", 20, "how many to list at most, 0 for all")
	return cmd
}

func history(cmd *cobra.Command, o historyOptions) error {
	if o.limit < 0 {
		return usageError(fmt.Errorf("--limit %d is negative", o.limit), "give 0 for all")
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	query := url.Values{}
	if o.limit > 0 {
		query.Set("limit", strconv.Itoa(o.limit))
	}
	var h api.History
	if err := c.call(cmd.Context(), http.MethodGet, "/v1/policies", query, nil, &h); err != nil {
		return err
	}
	if o.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), h)
	}
	if len(h.Revisions) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing has been applied yet")
		return nil
	}
	rows := [][]string{{"REVISION", "APPLIED", "PROXIES", "FILE", "BYTES", "SHA-256", "NOTE"}}
	for _, r := range h.Revisions {
		rows = append(rows, []string{
			number(r.Number), moment(r.Created), reception(r), r.File, strconv.Itoa(r.Bytes), r.SHA256[:min(12, len(r.SHA256))], note(r),
		})
	}
	return printTable(cmd.OutOrStdout(), rows)
}

// reception says what proxies made of a revision.
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
	text := ""
	if r.RollbackOf != 0 {
		text = "rollback of " + number(r.RollbackOf)
	}
	if r.Wasm != "" {
		if text != "" {
			text += ", "
		}
		text += "wasm " + r.Wasm
	}
	return text
}
