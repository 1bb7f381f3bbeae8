package cli

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

type getOptions struct {
	clientOptions
	output   output
	revision string
}

func newGetCommand() *cobra.Command {
	o := getOptions{revision: api.Current}
	cmd := &cobra.Command{
		Use:   "get [REVISION]",
		Short: "Print a revision's policy as it was given",
		Example: `  sluice get
  sluice get 3 > policy.yaml
  sluice get 3 --output json   # with its number, time and digest`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.revision = args[0]
			}
			return get(cmd, o)
		},
	}
	o.AddFlags(cmd)
	o.output.AddFlags(cmd)
	return cmd
}

func get(cmd *cobra.Command, o getOptions) error {
	if o.revision != api.Current {
		if err := checkRevision(o.revision); err != nil {
			return err
		}
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	var r api.Revision
	if err := c.call(cmd.Context(), http.MethodGet, "/v1/policies/"+o.revision, nil, nil, &r); err != nil {
		return err
	}
	if o.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), r)
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), r.YAML)
	return err
}

func checkRevision(text string) error {
	if n, err := strconv.ParseUint(text, 10, 64); err != nil || n == 0 {
		return usageError(fmt.Errorf("%q is not a revision", text), "give a number from 1; sluice history lists them")
	}
	return nil
}
