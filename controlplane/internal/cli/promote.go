package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func newPromoteCommand() *cobra.Command {
	return newMoveCommand("promoted", "promote", &cobra.Command{
		Short: "Give all proxies of a policy the revision of its canary",
		Long: `End the canary that apply --canary began: all other proxies of the policy get its
revision, too. This is so for one that has stalled, as well. It waits for the proxies
and exits as apply does.`,
		Example: `  sluice promote
  sluice promote --policy edge`,
	})
}

func newAbortCommand() *cobra.Command {
	return newMoveCommand("in force again", "abort", &cobra.Command{
		Short: "Take the revision of a policy's canary back",
		Long: `End the canary that apply --canary began: its proxies get the revision again that the
others have kept. The history keeps what was aborted, and nothing falls back on it.
It waits for the proxies and exits as apply does.`,
		Example: `  sluice abort
  sluice abort --policy edge`,
	})
}

func newRollbackCommand() *cobra.Command {
	return newMoveCommand("applied", "rollback [REVISION]", &cobra.Command{
		Short: "Apply an earlier revision again",
		Long: `Store an earlier revision's policy and binary as a new revision and push it.
Without REVISION it takes the newest earlier revision that a proxy accepted, or
the one before the current if none was accepted. After a rollback, earlier means
before the revision that is in force again. The history keeps all revisions.`,
		Example: `  sluice rollback        # to what was good before
  sluice rollback 3
  sluice rollback --policy edge`,
		Args: cobra.MaximumNArgs(1),
	})
}

// newMoveCommand has a command give a policy's proxies a revision that is stored. done is
// what the revision is then.
func newMoveCommand(done, use string, cmd *cobra.Command) *cobra.Command {
	var o serverOptions
	var wait time.Duration
	cmd.Use = use
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkWait(wait); err != nil {
			return err
		}
		path := "/v1/" + cmd.Name()
		if cmd.Name() == "rollback" {
			revision, err := revisionIn(args, api.Previous)
			if err != nil {
				return err
			}
			path += "/" + revision
		}
		c, err := o.client()
		if err != nil {
			return err
		}
		var now api.Applied
		if err := c.call(cmd.Context(), http.MethodPost, path, o.query(), nil, &now); err != nil {
			return err
		}
		return rollOut{client: c, output: o.output, wait: wait, done: done}.run(cmd, now)
	}
	o.AddFlags(cmd, store.DefaultPolicy)
	addWaitFlag(cmd, &wait)
	return cmd
}
