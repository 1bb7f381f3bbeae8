package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
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

// current returns the newest revision of a policy, nil before the first. One that is damaged
// or was aborted is passed over, as it is for proxies.
func (c *client) current(ctx context.Context, policy string) (*api.Revision, error) {
	var h api.History
	query := policyQuery(policy)
	query.Set("limit", "100")
	if err := c.call(ctx, http.MethodGet, "/v1/policies", query, nil, &h); err != nil {
		return nil, err
	}
	whole := slices.IndexFunc(h.Revisions, func(r store.Summary) bool { return !r.Damaged && !r.Rollout.IsAborted() })
	if whole < 0 {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	var r api.Revision
	path := "/v1/policies/" + strconv.FormatUint(h.Revisions[whole].Number, 10)
	if err := c.call(ctx, http.MethodGet, path, policyQuery(policy), nil, &r); err != nil {
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
