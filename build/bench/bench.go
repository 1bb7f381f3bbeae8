package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"

	"fortio.org/log"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/build/loading"
	"github.com/sluice-ratelimit/sluice/build/machine"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// bench is a run of the command.
type bench struct {
	options
	dir                  string // for files that go with the run
	upstream             int    // port
	stop                 func()
	service              *service // while a case with it is measured
	allCores, envoyCores []int
}

// newBench takes its place: Envoy gets the first core; this process, with the
// load and the upstream, the second.
func newBench(o options) (*bench, error) {
	log.SetLogLevelQuiet(log.Error)
	b := &bench{options: o}
	var err error
	if b.allCores, err = machine.Cores(); err != nil {
		return nil, err
	}
	if len(b.allCores) < 2 {
		return nil, errors.New("measure: it takes two processors, one of them for Envoy alone")
	}
	b.envoyCores = b.allCores[:1]
	if err := machine.Pin(os.Getpid(), b.allCores[1]); err != nil {
		return nil, err
	}
	// More threads than cores would only take turns.
	runtime.GOMAXPROCS(1)
	if b.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	address, stop, err := startUpstream()
	if err != nil {
		return nil, err
	}
	b.stop = stop
	b.upstream, err = port(address)
	return b, err
}

func (b *bench) close() {
	b.stop()
	_ = os.RemoveAll(b.dir)
}

// run visits every case in every round, so that what changes slowly meets all.
func (b *bench) run(ctx context.Context) (performance.Run, error) {
	result := performance.Run{
		Cores: len(b.allCores), Rounds: b.rounds, Pairs: b.pairs,
		TurnMs: float64(b.turn.Microseconds()) / 1e3, Rate: slowRate,
	}
	var err error
	if result.Processor, err = machine.Processor(); err != nil {
		return result, err
	}
	if result.Envoy, err = proc.Version(ctx, b.envoy); err != nil {
		return result, err
	}
	list, loads := b.chosen(), b.loads()
	if len(list)+len(loads) == 0 {
		return result, errors.New("no case has such a name")
	}
	if err := b.complete(list); err != nil {
		return result, err
	}
	for _, s := range list {
		result.Cases = append(result.Cases, performance.Case{Name: s.name, Title: s.title, Workers: max(s.workers, 1), Direct: s.direct, Why: refused(s.policy)})
	}
	for _, l := range loads {
		result.Loads = append(result.Loads, performance.Load{Name: l.name, Title: l.title})
	}
	for round := range b.rounds {
		for i := range list {
			if err := b.visitCase(ctx, list[i], &result.Cases[i]); err != nil {
				return result, fmt.Errorf("measure %s: %w", list[i].name, err)
			}
			if visits := result.Cases[i].Visits; len(visits) > 0 {
				v := visits[len(visits)-1]
				fmt.Printf("%d/%d %-16s base %6.2f µs, with it %6.2f, ratio %.3f (%.3f … %.3f); Envoy %.2f busy, others %.2f\n",
					round+1, b.rounds, list[i].name, v.BaseUs, v.TestUs, v.Ratio, v.RatioLow, v.RatioHigh, v.Busy, v.Foreign)
			}
		}
		for i := range loads {
			if err := b.load(ctx, loads[i], &result.Loads[i]); err != nil {
				return result, fmt.Errorf("load %s: %w", loads[i].name, err)
			}
		}
	}
	return result, nil
}

// chosen are the cases that were asked for.
func (b *bench) chosen() (list []subject) {
	for _, s := range subjects() {
		switch {
		case !b.which.MatchString(s.name):
		case b.against != "" && s.policy == "" && s.name != performance.None:
		default:
			list = append(list, s)
		}
	}
	return list
}

// complete says what a case lacks, before any of them is measured.
func (b *bench) complete(list []subject) error {
	for _, s := range list {
		if !s.service {
			continue
		}
		for _, program := range []struct{ flag, path string }{{"ratelimit", b.ratelimit}, {"redis", b.redis}} {
			if _, err := os.Stat(program.path); err != nil {
				return fmt.Errorf("measure %s: its program is missing: give -%s FILE, or have `make bench` install it: %w", s.name, program.flag, err)
			}
		}
	}
	return nil
}

// refused says why this tree's policies cannot be like that: a case may be
// there before what it measures. A case that is refused for any other reason
// fails in Envoy.
func refused(text string) string {
	if text == "" {
		return ""
	}
	doc, err := policy.ParseJSON([]byte(text))
	if err != nil {
		return err.Error()
	}
	if _, problems, _ := policy.Read(doc); len(problems) > 0 {
		return problems[0].String()
	}
	return ""
}

func (b *bench) visitCase(ctx context.Context, s subject, into *performance.Case) (err error) {
	if into.Why != "" {
		fmt.Printf("%s: left out: %s\n", s.name, into.Why)
		return nil
	}
	if s.service {
		if b.service, err = b.startService(ctx); err != nil {
			return err
		}
		defer b.service.stop()
	}
	got, err := b.visit(ctx, s)
	if err == nil {
		into.Visits = append(into.Visits, got)
	}
	return err
}

// loaded is something that an Envoy loads while it runs.
type loaded struct {
	name, title string
	plugin      func() (envoy.Plugin, error)
	changed     string // policy
}

func (b *bench) loads() (list []loaded) {
	if b.against != "" {
		return nil
	}
	before, after := paths(10), policyOf("", byHeader("another", limits("5/1h")))
	for _, l := range []loaded{
		{name: "floor", title: "the floor's module", plugin: b.floorPlugin},
		{name: "bare", title: "bare Go module", plugin: b.barePlugin},
		{name: performance.Ours, title: "the filter with a policy of 10 rules", changed: after, plugin: func() (envoy.Plugin, error) {
			return envoy.Plugin{Wasm: b.wasm, Policy: []byte(before)}, nil
		}},
	} {
		if b.which.MatchString("load-" + l.name) {
			list = append(list, l)
		}
	}
	return list
}

// loadWorkers is how many threads of Envoy the loads are measured with: each
// has a machine of its own.
const loadWorkers = 4

func (b *bench) load(ctx context.Context, l loaded, into *performance.Load) error {
	plugin, err := l.plugin()
	if err != nil {
		return err
	}
	var changed []byte
	if l.changed != "" {
		changed = []byte(l.changed)
	}
	got, err := loading.Measure(ctx, b.envoy, loadWorkers, plugin, changed, func(pid int) error { return machine.Pin(pid, b.allCores...) })
	if err != nil {
		return err
	}
	into.BlockedMs = append(into.BlockedMs, milliseconds(got.Blocked))
	into.Grown = append(into.Grown, got.Grown)
	if changed != nil {
		into.ChangedMs = append(into.ChangedMs, milliseconds(got.Changed))
	}
	fmt.Printf("load %s: blocked for %v, grown by %.1f MiB\n", l.name, got.Blocked.Round(time.Millisecond), float64(got.Grown)/(1<<20))
	return nil
}

func milliseconds(d time.Duration) float64 { return round(float64(d.Microseconds()) / 1e3) }

// round keeps three places, which is more than can be told apart.
func round(f float64) float64 { return math.Round(f*1e3) / 1e3 }
