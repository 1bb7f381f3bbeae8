package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

type rollbackOptions struct {
	serverOptions
	policyOptions
	wait time.Duration
}

func newRollbackCommand() *cobra.Command {
	var o rollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback [REVISION]",
		Short: "Apply an earlier revision again",
		Long: `Store an earlier revision's policy and binary as a new revision and push it.
Without REVISION it takes the newest earlier revision that a proxy accepted, or
the one before the current if none was accepted. After a rollback, earlier means
before the revision that is in force again. The history keeps all revisions.`,
		Example: `  sluice rollback        # to what was good before
  sluice rollback 3
  sluice rollback --policy edge`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return rollback(cmd, o, args) },
	}
	o.serverOptions.AddFlags(cmd)
	o.policyOptions.AddFlags(cmd, store.DefaultPolicy)
	addWaitFlag(cmd, &o.wait)
	return cmd
}

func rollback(cmd *cobra.Command, o rollbackOptions, args []string) error {
	if err := checkWait(o.wait); err != nil {
		return err
	}
	revision, err := revisionIn(args, api.Previous)
	if err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	var applied api.Applied
	if err := c.call(cmd.Context(), http.MethodPost, "/v1/rollback/"+revision, o.query(), nil, &applied); err != nil {
		return err
	}
	return rollOut{client: c, output: o.output, wait: o.wait, done: "applied"}.run(cmd, applied)
}
