// The measure command measures what the product claims, and prints it as tables: what
// a decision costs in Envoy, with loading the filter, and what limits over all Envoys cost.
// What else is measured are benchmarks, in the folders libraries and scale.
//
// Its invariant: it is a module of its own, so that what it links reaches no user of
// the product, and no process that it starts outlives it. It must not import the
// filter or the control plane: it runs the compiled ones from outside.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/decision"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	root := &cobra.Command{
		Use: "measure", Short: "Measure the product, from the root of its repository",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(decision.Command(), decision.ClusterCommand())
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
