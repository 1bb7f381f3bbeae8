package loading

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/sample"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// runs is how often the load is measured. The median counts.
const runs = 3

// SizeCommand is the subcommand.
func SizeCommand() *cobra.Command {
	var binary string
	cmd := &cobra.Command{
		Use:   "size WASM",
		Short: "How large the filter is, and how long loading it blocks Envoy",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return size(cmd.Context(), cmd.OutOrStdout(), binary, args[0])
		},
	}
	cmd.Flags().StringVar(&binary, "envoy", "", "`path` of the Envoy; default: what ENVOY_PATH or PATH offers")
	return cmd
}

func size(ctx context.Context, out io.Writer, binary, wasm string) error {
	module, err := os.Stat(wasm)
	if err != nil {
		return fmt.Errorf("read filter: %w: run make build", err)
	}
	if binary == "" {
		if binary, err = proc.Find(); err != nil {
			return err
		}
	}
	version, err := proc.Version(ctx, binary)
	if err != nil {
		return err
	}
	var blocked []float64 // ms
	for range runs {
		got, err := Measure(ctx, binary, 1, envoy.Plugin{Wasm: wasm, Policy: []byte(envoy.EmptyPolicy)}, "", nil)
		if err != nil {
			return err
		}
		blocked = append(blocked, got.Blocked.Seconds()*1e3)
	}
	s := sample.SpreadOf(blocked)
	fmt.Fprintf(out, "%s: %d bytes (%.2f MiB); loading it blocks the main thread of Envoy %s for %.0f ms (%.0f … %.0f in %d loads)\n",
		wasm, module.Size(), float64(module.Size())/(1<<20), version, s.Median, s.Min, s.Max, runs)
	return nil
}
