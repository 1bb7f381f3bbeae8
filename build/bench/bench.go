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
	"github.com/sluice-ratelimit/sluice/build/machine"
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
	list, modules := b.chosen(), b.modules()
	if len(list)+len(modules) == 0 {
		return result, errors.New("no case has such a name")
	}
	if err := b.complete(list); err != nil {
		return result, err
	}
	for _, s := range list {
		result.Cases = append(result.Cases, performance.Case{Name: s.name, Title: s.title, Workers: max(s.workers, 1), Direct: s.direct, Why: refused(s.policy)})
	}
	for _, m := range modules {
		result.Loads = append(result.Loads, performance.Load{Name: m.name, Title: m.title})
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
		for i := range modules {
			if err := b.visitModule(ctx, modules[i], &result.Loads[i]); err != nil {
				return result, fmt.Errorf("load %s: %w", modules[i].name, err)
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

func milliseconds(d time.Duration) float64 { return round(float64(d.Microseconds()) / 1e3) }

// round keeps three places, which is more than can be told apart.
func round(f float64) float64 { return math.Round(f*1e3) / 1e3 }
