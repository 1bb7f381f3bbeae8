package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func newPromoteCommand() *cobra.Command {
	return newEndCommand("promote", "Give all proxies of a policy the revision of its canary",
		`End the canary that apply --canary began: all other proxies of the policy get its
revision, too. This is so for one that has stalled, as well. It waits for the proxies
and exits as apply does.`, "promoted")
}

func newAbortCommand() *cobra.Command {
	return newEndCommand("abort", "Take the revision of a policy's canary back",
		`End the canary that apply --canary began: its proxies get the revision again that the
others have kept. The history keeps what was aborted, and nothing falls back on it.
It waits for the proxies and exits as apply does.`, "in force again")
}

// newEndCommand returns one of the two commands that end a canary. done is what the
// revision is then that all proxies get.
func newEndCommand(name, short, long, done string) *cobra.Command {
	var o serverOptions
	var of policyOptions
	var wait time.Duration
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long,
		Example: "  sluice " + name + "\n  sluice " + name + " --policy edge",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkWait(wait); err != nil {
				return err
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			var now api.Applied
			if err := c.call(cmd.Context(), http.MethodPost, "/v1/"+name, of.query(), nil, &now); err != nil {
				return err
			}
			return rollOut{client: c, output: o.output, wait: wait, done: done}.run(cmd, now)
		},
	}
	o.AddFlags(cmd)
	of.AddFlags(cmd, store.DefaultPolicy)
	addWaitFlag(cmd, &wait)
	return cmd
}
