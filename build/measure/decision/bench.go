// Package decision measures what one decision costs in a real Envoy: the CPU time
// of the process for a request, latency at a fixed rate, memory and load time, of
// the filter, of other limiters and of the floors below them.
//
// Its invariant: a figure is a difference between two listeners of one process,
// alike but for the filters in question, that are loaded in short turns one after
// the other. Two listeners that do not differ are measured too: they show what the
// method cannot tell apart. It must not import the filter or the control plane.
package decision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-ratelimit/sluice/build/measure/loading"
	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// bench is a run of the command.
type bench struct {
	envoy, wasm, against string // paths
	ratelimit, redis     string // paths of the rate limit service and its store
	sluice               string // path of the command line
	rounds, pairs        int
	turn                 time.Duration // about how long one listener is loaded at a time
	warmUp               time.Duration // of each listener: engines compile what is hot anew

	stop                 func()
	dir                  string // for files that go with the run
	upstream             int    // port
	service              *service
	allCores, envoyCores []int
}

// Command is the subcommand.
func Command() *cobra.Command {
	b := &bench{pairs: 60, turn: 25 * time.Millisecond, warmUp: time.Second}
	var cases, docs string
	cmd := &cobra.Command{
		Use:   "decision",
		Short: "What one decision costs in Envoy: into docs/performance.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			which, err := regexp.Compile(cases)
			if err != nil {
				return err
			}
			return b.command(cmd.Context(), which, docs)
		},
	}
	b.flags(cmd.Flags(), &cases, &docs, "performance.md")
	cmd.Flags().StringVar(&b.against, "against", "", "`path` of another build of the filter, which --wasm is measured against")
	return cmd
}

// flags are those of both commands.
func (b *bench) flags(flags *pflag.FlagSet, cases, docs *string, page string) {
	flags.StringVar(&b.envoy, "envoy", "", "`path` of the Envoy; default: what ENVOY_PATH or PATH offers")
	flags.StringVar(&b.wasm, "wasm", "build/out/sluice.wasm", "`path` of the filter")
	flags.StringVar(&b.ratelimit, "ratelimit", "", "`path` of envoyproxy/ratelimit")
	flags.StringVar(&b.redis, "redis", "", "`path` of redis-server")
	flags.StringVar(docs, "docs", "", "`folder` of "+page+"; default: only print")
	flags.StringVar(cases, "cases", ".", "regular `expression` for the names of the cases")
	flags.IntVar(&b.rounds, "rounds", 5, "how often each case is measured, each time in a new Envoy")
}

func (b *bench) command(ctx context.Context, which *regexp.Regexp, docs string) (err error) {
	if b.envoy == "" {
		if b.envoy, err = proc.Find(); err != nil {
			return err
		}
	}
	if err := b.start(); err != nil {
		return err
	}
	defer b.close()
	found, err := b.run(ctx, which)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n%s", found.machine(), found.cases())
	if b.against == "" { // the bounds are of what is added to no filter
		fmt.Printf("\n%s\n%s\n%s", found.others(), found.loads(), found.targets())
	}
	if docs == "" {
		return nil
	}
	shown, err := found.page()
	if err != nil {
		return err
	}
	return shown.Write(docs)
}

// start takes the place of the run: Envoy gets the first core. This process, with
// the load and the upstream, gets the second.
func (b *bench) start() (err error) {
	if b.allCores, err = machine.Cores(); err != nil {
		return err
	}
	if len(b.allCores) < 2 {
		return errors.New("measure: it takes two processors, one of them for Envoy alone")
	}
	b.envoyCores = b.allCores[:1]
	if err := machine.Pin(os.Getpid(), b.allCores[1]); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1) // more threads than cores would only take turns
	if b.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	b.upstream, b.stop, err = startUpstream()
	return err
}

func (b *bench) close() {
	b.stop()
	_ = machine.Pin(os.Getpid(), b.allCores...)
	runtime.GOMAXPROCS(len(b.allCores))
	_ = os.RemoveAll(b.dir)
}

// run measures every case in every round, so that what changes slowly meets all.
func (b *bench) run(ctx context.Context, which *regexp.Regexp) (f figures, err error) {
	f = figures{Cores: len(b.allCores), Rounds: b.rounds, Pairs: b.pairs, TurnMs: float64(b.turn.Microseconds()) / 1e3, Rate: slowRate}
	if f.Processor, err = machine.Processor(); err != nil {
		return f, err
	}
	if f.Envoy, err = proc.Version(ctx, b.envoy); err != nil {
		return f, err
	}
	var cases []subject
	for _, s := range subjects() {
		if which.MatchString(s.name) && (b.against == "" || s.policy != "" || s.name == caseNone) {
			cases = append(cases, s)
			f.Cases = append(f.Cases, measured{Name: s.name, Title: s.title, Workers: max(s.workers, 1), Direct: s.direct})
		}
	}
	var loads []load
	for _, l := range allLoads() {
		if which.MatchString("load-"+l.name) && b.against == "" {
			loads = append(loads, l)
			f.Loads = append(f.Loads, loaded{Name: l.name, Title: l.title})
		}
	}
	if len(cases)+len(loads) == 0 {
		return f, errors.New("no case has such a name")
	}
	for round := range b.rounds {
		for i, s := range cases {
			v, err := b.visit(ctx, s)
			if err != nil {
				return f, fmt.Errorf("measure %s: %w", s.name, err)
			}
			f.Cases[i].Visits = append(f.Cases[i].Visits, v)
			fmt.Printf("%d/%d %-16s base %6.2f µs, with it %6.2f, ratio %.3f (%.3f … %.3f); others %.2f\n",
				round+1, b.rounds, s.name, v.BaseUs, v.TestUs, v.Ratio, v.RatioLow, v.RatioHigh, v.Foreign)
		}
		for i, l := range loads {
			if err := b.load(ctx, l, &f.Loads[i]); err != nil {
				return f, fmt.Errorf("load %s: %w", l.name, err)
			}
		}
	}
	return f, nil
}

// loadWorkers is how many threads of Envoy loading is measured with: each has a VM
// of its own.
const loadWorkers = 4

// load has a new Envoy load a module, and take another policy where there is one.
func (b *bench) load(ctx context.Context, l load, into *loaded) error {
	plugin := envoy.Plugin{Wasm: b.wasm, Policy: []byte(l.policy)}
	if l.module != "" {
		var err error
		if plugin, err = b.module(ctx, l.module); err != nil {
			return err
		}
	}
	got, err := loading.Measure(ctx, b.envoy, loadWorkers, plugin, l.changed, func(pid int) error { return machine.Pin(pid, b.allCores...) })
	if err != nil {
		return err
	}
	into.BlockedMs = append(into.BlockedMs, round(got.Blocked.Seconds()*1e3))
	into.Grown = append(into.Grown, got.Grown)
	if l.changed != "" {
		into.ChangedMs = append(into.ChangedMs, round(got.Changed.Seconds()*1e3))
	}
	fmt.Printf("load %s: blocked for %v, grown by %.1f MiB\n", l.name, got.Blocked.Round(time.Millisecond), float64(got.Grown)/(1<<20))
	return nil
}
