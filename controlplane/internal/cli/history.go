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

func newGetCommand() *cobra.Command {
	var o serverOptions
	return with(&cobra.Command{
		Use:   "get [REVISION]",
		Short: "Print a revision's policy as it was given",
		Example: `  sluice get
  sluice get 3 > policy.yaml
  sluice get --policy edge
  sluice get 3 --output json   # with its number, time and digest`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := revisionIn(args, api.Current)
			if err != nil {
				return err
			}
			return show(cmd, &o, "/v1/policies/"+revision, o.query(), func(w io.Writer, r *api.Revision) error {
				_, err := fmt.Fprint(w, r.YAML)
				return err
			})
		},
	}, func(cmd *cobra.Command) { o.AddFlags(cmd, store.DefaultPolicy) })
}

// revisionIn returns the revision that is the argument, or one by name.
func revisionIn(args []string, byName string) (string, error) {
	if len(args) == 0 || args[0] == byName {
		return byName, nil
	}
	if n, err := strconv.ParseUint(args[0], 10, 64); err != nil || n == 0 {
		return "", usageError(fmt.Errorf("%q is not a revision", args[0]), "give a number from 1; sluice history lists them")
	}
	return args[0], nil
}
