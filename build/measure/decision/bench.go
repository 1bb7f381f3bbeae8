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

// Command is the subcommand for one Envoy.
func Command() *cobra.Command {
	b := &bench{pairs: 60, turn: 25 * time.Millisecond, warmUp: time.Second}
	cmd := b.command(b.decision)
	cmd.Use, cmd.Short = "decision", "What one decision costs in Envoy"
	cmd.Flags().StringVar(&b.against, "against", "", "`path` of another build of the filter, which --wasm is measured against")
	return cmd
}

// ClusterCommand is the subcommand for limits over all Envoys.
func ClusterCommand() *cobra.Command {
	b := &bench{warmUp: time.Second}
	cmd := b.command(b.cluster)
	cmd.Use, cmd.Short = "cluster", "What limits over all Envoys cost"
	cmd.Flags().StringVar(&b.sluice, "sluice", "build/out/sluice", "`path` of the command line")
	return cmd
}

func (b *bench) command(measure func(context.Context, *regexp.Regexp) error) *cobra.Command {
	var cases string
	cmd := &cobra.Command{Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		which, err := regexp.Compile(cases)
		if err != nil {
			return err
		}
		if b.rounds < 1 {
			return errors.New("--rounds is 1 or more")
		}
		if b.envoy == "" {
			if b.envoy, err = proc.Find(); err != nil {
				return err
			}
		}
		version, err := proc.Version(cmd.Context(), b.envoy)
		if err != nil {
			return err
		}
		if err := b.start(); err != nil {
			return err
		}
		defer b.close()
		processor, err := machine.Processor()
		if err != nil {
			return err
		}
		fmt.Printf("Envoy %s on %d cores of an %s; rounds: %d.\n\n", version, len(b.allCores), processor, b.rounds)
		return measure(cmd.Context(), which)
	}}
	flags := cmd.Flags()
	flags.StringVar(&b.envoy, "envoy", "", "`path` of the Envoy; default: what ENVOY_PATH or PATH offers")
	flags.StringVar(&b.wasm, "wasm", "build/out/sluice.wasm", "`path` of the filter")
	flags.StringVar(&b.ratelimit, "ratelimit", "", "`path` of envoyproxy/ratelimit")
	flags.StringVar(&b.redis, "redis", "", "`path` of redis-server")
	flags.StringVar(&cases, "cases", ".", "regular `expression` for the names of the cases")
	flags.IntVar(&b.rounds, "rounds", 5, "how often each case is measured, each time in a new Envoy")
	return cmd
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

// decision measures every case in every round, so that what changes slowly meets all.
func (b *bench) decision(ctx context.Context, which *regexp.Regexp) error {
	var f figures
	for _, s := range subjects() {
		if which.MatchString(s.name) && (b.against == "" || s.policy != "" && !s.floor || s.name == caseNone) {
			f.cases = append(f.cases, measured{subject: s})
		}
	}
	for _, l := range allLoads() {
		if which.MatchString("load-"+l.name) && b.against == "" {
			f.loads = append(f.loads, loaded{load: l})
		}
	}
	if len(f.cases)+len(f.loads) == 0 {
		return errors.New("no case has such a name")
	}
	for round := range b.rounds {
		for i := range f.cases {
			c := &f.cases[i]
			v, err := b.visit(ctx, c.subject)
			if err != nil {
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			c.visits = append(c.visits, v)
			fmt.Printf("%d/%d %-16s base %6.2f µs, with it %6.2f, ratio %.3f\n", round+1, b.rounds, c.name, v.baseUs, v.testUs, v.ratio)
		}
		for i := range f.loads {
			if err := b.load(ctx, &f.loads[i]); err != nil {
				return fmt.Errorf("load %s: %w", f.loads[i].name, err)
			}
		}
	}
	if len(f.cases) > 0 {
		fmt.Printf("\n%s\n%s", f.caseTable(), f.others())
	}
	if b.against == "" { // the bounds are of what is added to no filter
		fmt.Printf("\n%s\n%s", f.loadTable(), f.targets())
	}
	return nil
}

// loadWorkers is how many threads of Envoy loading is measured with: each has a VM
// of its own.
const loadWorkers = 4

// load has a new Envoy load a module, and take another policy where there is one.
func (b *bench) load(ctx context.Context, l *loaded) (err error) {
	plugin := envoy.Plugin{Wasm: b.wasm, Policy: []byte(l.policy)}
	if l.policy == "" {
		if plugin, err = b.floorPlugin(envoy.EmptyPolicy); err != nil {
			return err
		}
	}
	got, err := b.loading(ctx, loadWorkers, plugin, l.changed)
	if err != nil {
		return err
	}
	l.blockedMs = append(l.blockedMs, got.blocked.Seconds()*1e3)
	l.grownMiB = append(l.grownMiB, float64(got.grown)/(1<<20))
	if l.changed != "" {
		l.changedMs = append(l.changedMs, got.changed.Seconds()*1e3)
	}
	return nil
}
