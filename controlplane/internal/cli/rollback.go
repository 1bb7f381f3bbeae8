package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

type rollbackOptions struct {
	clientOptions
	output   output
	wait     time.Duration
	revision string
}

func newRollbackCommand() *cobra.Command {
	o := rollbackOptions{revision: api.Previous}
	cmd := &cobra.Command{
		Use:   "rollback [REVISION]",
		Short: "Apply an earlier revision again",
		Long: `Store an earlier revision's policy and binary as a new revision and push it.
Without REVISION it takes the newest one before the current that some proxy
accepted, or the one before if none was. History stays as it is.`,
		Example: `  sluice rollback        # to what was good before
  sluice rollback 3`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.revision = args[0]
			}
			return rollback(cmd, o)
		},
	}
	o.AddFlags(cmd)
	o.output.AddFlags(cmd)
	addWaitFlag(cmd, &o.wait)
	return cmd
}

func rollback(cmd *cobra.Command, o rollbackOptions) error {
	if err := checkWait(o.wait); err != nil {
		return err
	}
	if o.revision != api.Previous {
		if err := checkRevision(o.revision); err != nil {
			return err
		}
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	var applied api.Applied
	if err := c.call(cmd.Context(), http.MethodPost, "/v1/rollback/"+o.revision, nil, nil, &applied); err != nil {
		return err
	}
	return rollOut{client: c, output: o.output, wait: o.wait, applied: applied}.run(cmd)
}
