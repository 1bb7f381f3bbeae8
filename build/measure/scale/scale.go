// Package scale measures the parts beside the hot path at the sizes they must bear:
// a policy of as many rules as there may be, a control plane with a thousand
// proxies, the simulator, and a real Envoy whose policy changes.
//
// Its invariant: what is measured is the compiled command line and filter that users
// run, from outside, and no process that it starts outlives it.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/measure/page"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// bench is one run.
type bench struct {
	sluice, wasm, envoy string // paths
	docs                string // folder
	rounds              int
	dir                 string // of this run's files

	found figures
	part  string // that is measured now
}

// Command is the subcommand.
func Command() *cobra.Command {
	b := &bench{}
	var only string
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "The parts beside the hot path at scale: into docs/scale.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			which, err := regexp.Compile(only)
			if err != nil {
				return err
			}
			return b.run(cmd.Context(), which)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.sluice, "sluice", "build/out/sluice", "`path` of the command line")
	flags.StringVar(&b.wasm, "wasm", "build/out/sluice.wasm", "`path` of the filter")
	flags.StringVar(&b.envoy, "envoy", "", "`path` of the Envoy")
	flags.StringVar(&b.docs, "docs", "docs", "`folder` of scale.md")
	flags.IntVar(&b.rounds, "rounds", 3, "how often each figure is taken")
	flags.StringVar(&only, "only", ".", "regular `expression` for the parts to measure; figures of the others stay")
	return cmd
}

// part is a table of the page.
type part struct {
	name, title string
	measure     func(*bench, context.Context) error
}

var parts = []part{
	{"compile", "A policy of 10,000 rules", (*bench).compile},
	{"fleet", "serve with 1,000 proxies", (*bench).fleet},
	{"simulate", "simulate", (*bench).simulate},
	{"change", "A change of policy in Envoy", (*bench).change},
}

func (b *bench) run(ctx context.Context, which *regexp.Regexp) (err error) {
	if b.wasm, err = filepath.Abs(b.wasm); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "scale-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.found.Envoy, err = proc.Version(ctx, b.envoy); err != nil {
		return err
	}
	processor, err := machine.Processor()
	if err != nil {
		return err
	}
	b.found.Machine = page.Count(runtime.NumCPU(), "core") + " of " + processor
	for _, p := range parts {
		if !which.MatchString(p.name) {
			continue
		}
		b.part = p.title
		if err := p.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	var former figures
	if err := page.Read(b.docs, pageName, "", &former); err != nil {
		return err
	}
	return b.found.join(former).page().Write(b.docs)
}

// column is a figure before it is taken.
type column struct {
	what, unit string
	target     float64 // the most that it may be; 0 = none
}

// take takes the figures of the columns once a round: once returns one value for
// each of them.
func (b *bench) take(ctx context.Context, columns []column, once func() ([]float64, error)) error {
	rows := make([]row, len(columns))
	for i, c := range columns {
		rows[i] = row{Part: b.part, What: c.what, Unit: c.unit, Target: c.target}
	}
	for range b.rounds {
		values, err := once()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		for i := range rows {
			rows[i].Values = append(rows[i].Values, values[i])
		}
	}
	for _, r := range rows {
		fmt.Println(r.line())
	}
	b.found.Rows = append(b.found.Rows, rows...)
	return nil
}

// cli runs the command line under test to its end.
func (b *bench) cli(ctx context.Context, args ...string) (machine.Ran, error) {
	cmd := exec.CommandContext(ctx, b.sluice, args...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(b.dir, "cache"))
	return machine.Run(cmd)
}

// file writes a file of this run and returns its path.
func (b *bench) file(name string, content []byte) (string, error) {
	path := filepath.Join(b.dir, name)
	return path, os.WriteFile(path, content, 0o600)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
