// The size command says what the compiled filter costs whoever loads it: what
// it imports and exports, how large it is, and for how long loading it keeps a
// real Envoy's main thread from everything else.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/loading"
	"github.com/sluice-ratelimit/sluice/build/sample"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// runs is how often the load is measured; the median counts.
const runs = 3

func main() {
	binary := flag.String("envoy", "", "`path` of the Envoy to measure on; default: what ENVOY_PATH, PATH or build/out offer")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: size [--envoy PATH] WASM")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := report(ctx, os.Stdout, *binary, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func report(ctx context.Context, out io.Writer, binary, wasm string) error {
	wasm, err := filepath.Abs(wasm) // Envoy gets the path too
	if err != nil {
		return err
	}
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
		got, err := loading.Measure(ctx, binary, 1, envoy.Plugin{Wasm: wasm, Policy: []byte(envoy.EmptyPolicy)}, nil, nil)
		if err != nil {
			return err
		}
		blocked = append(blocked, float64(got.Blocked)/float64(time.Millisecond))
	}
	s := sample.SpreadOf(blocked)
	fmt.Fprintf(out, "loading it blocks the main thread of Envoy %s for %.0f ms (%.0f … %.0f in %d loads)\n", version, s.Median, s.Least, s.Most, runs)
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
	list := func(what string, names []string) {
		slices.Sort(names)
		names = slices.Compact(names)
		fmt.Fprintf(out, "%d %s:\n  %s\n", len(names), what, strings.Join(names, "\n  "))
	}
	list("imports", imports)
	list("exports", exports)
	fmt.Fprintf(out, "size: %d bytes (%.2f MiB)\n", len(wasm), float64(len(wasm))/(1<<20))
	return runtime.Close(ctx)
}
