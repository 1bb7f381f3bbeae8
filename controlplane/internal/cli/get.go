package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

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
