package loading

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tetratelabs/wazero"

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
		Short: "What the filter imports and exports, its size, how long loading it blocks Envoy",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return size(cmd.Context(), cmd.OutOrStdout(), binary, args[0])
		},
	}
	cmd.Flags().StringVar(&binary, "envoy", "", "`path` of the Envoy; default: what ENVOY_PATH or PATH offers")
	return cmd
}

func size(ctx context.Context, out io.Writer, binary, wasm string) (err error) {
	if err := describe(ctx, out, wasm); err != nil {
		return err
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
	fmt.Fprintf(out, "loading it blocks the main thread of Envoy %s for %.0f ms (%.0f … %.0f in %d loads)\n", version, s.Median, s.Min, s.Max, runs)
	return nil
}

// describe prints what is in the module.
func describe(ctx context.Context, out io.Writer, path string) error {
	wasm, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read filter: %w", err)
	}
	// Nothing is run, so nothing needs compiling to machine code.
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(ctx)
	compiled, err := runtime.CompileModule(ctx, wasm)
	if err != nil {
		return fmt.Errorf("read filter %s: %w", path, err)
	}
	var imports, exports []string
	for _, function := range compiled.ImportedFunctions() {
		from, name, _ := function.Import()
		imports = append(imports, from+"."+name)
	}
	for name := range compiled.ExportedFunctions() {
		exports = append(exports, name)
	}
	list(out, "imports", imports)
	list(out, "exports", exports)
	fmt.Fprintf(out, "size: %d bytes (%.2f MiB)\n", len(wasm), float64(len(wasm))/(1<<20))
	return nil
}

func list(out io.Writer, what string, names []string) {
	slices.Sort(names)
	names = slices.Compact(names)
	fmt.Fprintf(out, "%d %s:\n  %s\n", len(names), what, strings.Join(names, "\n  "))
}
