package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func newHistoryCommand() *cobra.Command {
	var o listOptions
	return with(&cobra.Command{
		Use:   "history",
		Short: "List revisions, the newest first",
		Example: `  sluice history
  sluice history --limit 5 --policy edge
  sluice history --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return history(cmd, o) },
	}, func(cmd *cobra.Command) { o.AddFlags(cmd, store.DefaultPolicy) })
}

func history(cmd *cobra.Command, o listOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	query := o.query()
	if o.limit > 0 {
		query.Set("limit", strconv.Itoa(o.limit))
	}
	return show(cmd, &o.serverOptions, "/v1/policies", query, func(w io.Writer, h *api.History) error {
		if len(h.Revisions) == 0 {
			_, err := fmt.Fprintln(w, nothingApplied(o.policyName, h.Policies))
			return err
		}
		rows := [][]string{{"REVISION", "APPLIED", "PROXIES", "FILE", "BYTES", "SHA-256", "NOTE"}}
		for _, r := range h.Revisions {
			rows = append(rows, []string{
				number(r.Number), moment(r.Created), reception(r), r.File, strconv.Itoa(r.Bytes), r.SHA256[:min(12, len(r.SHA256))], note(r),
			})
		}
		return printTable(w, rows)
	})
}

// nothingApplied says that a policy has no revision, and which policies have.
func nothingApplied(name string, others []string) string {
	if len(others) == 0 {
		return "nothing has been applied yet"
	}
	return fmt.Sprintf("nothing has been applied to the policy %s yet; there are: %s", cmp.Or(name, store.DefaultPolicy), strings.Join(others, ", "))
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
