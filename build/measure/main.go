// The measure command measures the product and writes what it finds into the
// documentation: what a decision costs in Envoy, the parts beside the hot path at
// scale, the Go library beside others, the size of the filter, and pictures of what
// each algorithm admits.
//
// Its invariant: it is a module of its own, so that what it links reaches no user of
// the product, and no process that it starts outlives it. It must not import the
// filter or the control plane: it runs the compiled ones from outside.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/decision"
	"github.com/sluice-ratelimit/sluice/build/measure/faults"
	"github.com/sluice-ratelimit/sluice/build/measure/fleet"
	"github.com/sluice-ratelimit/sluice/build/measure/libraries"
	"github.com/sluice-ratelimit/sluice/build/measure/loading"
	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/build/measure/plots"
	"github.com/sluice-ratelimit/sluice/build/measure/scale"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	root := &cobra.Command{
		Use: "measure", Short: "Measure the product, from the root of its repository",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if rounds, err := cmd.Flags().GetInt("rounds"); err == nil && rounds < 1 {
				return errors.New("--rounds is 1 or more")
			}
			return nil
		},
	}
	root.AddCommand(decision.Command(), decision.ClusterCommand(), scale.Command(), libraries.Command(), loading.SizeCommand(), plots.Command(), fleet.Command(), pagesCommand(), linesCommand())
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// measuredPages read the figures that are kept beside each page.
var measuredPages = []func(docs string) (page.Figures, error){decision.Figures, decision.ClusterFigures, scale.Figures, libraries.Figures, fleet.Figures, faults.Figures}

func pagesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pages", Short: "Make tables and pictures anew from the figures in docs/*.json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, read := range measuredPages {
				figures, err := read("docs")
				if err != nil {
					return err
				}
				if err := figures.Write("docs"); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
