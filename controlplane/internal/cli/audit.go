package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// listOptions are the flags of a command that lists the newest entries.
type listOptions struct {
	serverOptions
	limit int
}

// AddFlags adds the flags, with what holds without --policy.
func (o *listOptions) AddFlags(cmd *cobra.Command, without string) {
	o.serverOptions.AddFlags(cmd, without)
	cmd.Flags().IntVar(&o.limit, "limit", 20, "how many to list at most, 0 for all")
}

func (o *listOptions) check() error {
	if o.limit < 0 {
		return usageError(fmt.Errorf("--limit %d is negative", o.limit), "give 0 for all")
	}
	return nil
}

func newAuditCommand() *cobra.Command {
	var o listOptions
	return with(&cobra.Command{
		Use:   "audit",
		Short: "List who changed what, the newest first",
		Long: `List the changes that the control plane has stored and the backups that it sent:
when, who asked, from which address, and what for. The log keeps 10,000 entries.`,
		Example: `  sluice audit
  sluice audit --limit 5 --policy edge
  sluice audit --limit 0 --output json   # all of them`,
		RunE: func(cmd *cobra.Command, _ []string) error { return audit(cmd, o) },
	}, func(cmd *cobra.Command) { o.AddFlags(cmd, "all") })
}

func audit(cmd *cobra.Command, o listOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	a, err := c.audit(cmd, o.query(), o.limit)
	if err != nil {
		return err
	}
	return o.output.print(cmd, a, func(w io.Writer) error {
		if len(a.Entries) == 0 {
			_, err := fmt.Fprintln(w, "nothing has been changed yet")
			return err
		}
		rows := [][]string{{"ID", "AT", "WHO", "FROM", "ACTION", "REVISION", "WHAT", "OUTCOME"}}
		for _, e := range a.Entries {
			rows = append(rows, []string{
				number(e.ID), moment(e.At), access.Who(e.Who), e.From, e.Action, number(e.Revision), e.Text, e.Outcome,
			})
		}
		return printTable(w, withPolicies(rows, 5, a.Entries, func(e store.Entry) string { return e.Policy }))
	})
}

// audit reads the newest entries, all of them if limit is 0, page by page.
func (c *client) audit(cmd *cobra.Command, query url.Values, limit int) (api.Audit, error) {
	all := api.Audit{Entries: []store.Entry{}}
	for {
		size := api.MaxAudit
		if limit > 0 {
			size = min(size, limit-len(all.Entries))
		}
		query.Set("limit", strconv.Itoa(size))
		var page api.Audit
		if err := c.call(cmd.Context(), http.MethodGet, "/v1/audit", query, nil, &page); err != nil {
			return all, err
		}
		all.Entries = append(all.Entries, page.Entries...)
		if len(page.Entries) < size || len(all.Entries) == limit {
			return all, nil
		}
		query.Set("before", strconv.FormatUint(page.Entries[len(page.Entries)-1].ID, 10))
	}
}
