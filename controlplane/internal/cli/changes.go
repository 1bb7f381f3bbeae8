package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// current returns the newest revision, nil before the first. One that is damaged
// is passed over, as it is for proxies.
func (c *client) current(ctx context.Context) (*api.Revision, error) {
	var h api.History
	if err := c.call(ctx, http.MethodGet, "/v1/policies", url.Values{"limit": {"10"}}, nil, &h); err != nil {
		return nil, err
	}
	whole := slices.IndexFunc(h.Revisions, func(r store.Summary) bool { return !r.Damaged })
	if whole < 0 {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	return c.revision(ctx, strconv.FormatUint(h.Revisions[whole].Number, 10))
}

func (c *client) revision(ctx context.Context, number string) (*api.Revision, error) {
	var r api.Revision
	if err := c.call(ctx, http.MethodGet, "/v1/policies/"+number, nil, nil, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// counterChanges compares a policy with the revision it is to replace, nil for
// none. A revision of another version of sluice may be beyond this one.
func counterChanges(cmd *cobra.Command, before *api.Revision, after *policy.Policy) []policydiff.Change {
	if before == nil {
		return policydiff.Between(nil, after)
	}
	old, _, _, err := policyfile.Read(before.File, []byte(before.YAML))
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: this sluice cannot read revision %d, so which counters restart is not known: %s\n",
			before.Number, printable.Text(Lines(err)[0]))
		return nil
	}
	return policydiff.Between(old, after)
}

// printChanges prints what becomes of the counters that do not stay as they are.
func printChanges(w io.Writer, changes []policydiff.Change) {
	for _, change := range changes {
		if !change.Keeps {
			fmt.Fprintln(w, printable.Text(change.Text))
		}
	}
}
