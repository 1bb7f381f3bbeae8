// The bench command measures what one decision costs in a real Envoy: the CPU
// time of the process for a request, latency at a fixed rate, memory and load
// time, of the filter, of other limiters and of the floors below it.
//
// Its invariant: a figure is a difference between two listeners of one process,
// alike but for the filters in question, that were loaded in short turns one
// after the other. Two listeners that do not differ are measured too, and show
// what the method cannot tell apart.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/build/report"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

func main() {
	var o options
	flag.StringVar(&o.envoy, "envoy", "", "`path` of the Envoy to measure on; default: what ENVOY_PATH, PATH or build/out offer")
	flag.StringVar(&o.wasm, "wasm", "build/out/sluice.wasm", "`path` of the filter")
	flag.StringVar(&o.against, "against", "", "`path` of another build of the filter: measure -wasm against it instead of against no filter")
	flag.StringVar(&o.ratelimit, "ratelimit", "", "`path` of envoyproxy/ratelimit")
	flag.StringVar(&o.redis, "redis", "", "`path` of redis-server")
	flag.StringVar(&o.docs, "docs", "", "`folder` whose performance.md, performance.json and img/performance.svg are to be written; empty = none")
	cases := flag.String("cases", ".", "regular `expression` for the names of the cases")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each case is visited, each time in a new Envoy")
	flag.IntVar(&o.pairs, "pairs", 60, "pairs of turns in a visit")
	flag.DurationVar(&o.turn, "turn", 25*time.Millisecond, "about how `long` one listener is loaded at a time")
	flag.Parse()
	which, err := regexp.Compile(*cases)
	if err != nil || o.rounds < 1 || o.pairs < 1 || o.turn < time.Millisecond || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: bench [-cases REGEXP] [-rounds N] [-pairs N] [-turn 25ms] [-wasm FILE [-against FILE]] [-docs FOLDER] …")
		flag.PrintDefaults()
		os.Exit(2)
	}
	o.which = which
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	envoy, wasm, against string
	ratelimit, redis     string // paths of the rate limit service and its store; needed by their case
	docs                 string
	which                *regexp.Regexp
	rounds, pairs        int
	turn                 time.Duration
}

func run(ctx context.Context, o options) (err error) {
	if o.envoy == "" {
		if o.envoy, err = proc.Find(); err != nil {
			return err
		}
	}
	// Envoy is told these paths, and it runs elsewhere.
	for _, path := range []*string{&o.wasm, &o.against} {
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return err
			}
		}
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	found, err := b.run(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n%s", found.Machine(), found.CaseTable())
	if o.against == "" { // the bounds are of what is added to no filter
		fmt.Printf("\n%s\n%s\n%s", found.Others(), found.LoadTable(), found.TargetTable())
	}
	if o.docs == "" {
		return nil
	}
	return write(o.docs, found)
}

// write puts what was found where it is read.
func write(docs string, found performance.Run) error {
	raw, err := found.Write()
	if err != nil {
		return err
	}
	if err := report.Update(filepath.Join(docs, "performance.md"), found.Fill); err != nil {
		return err
	}
	if err := report.Write(filepath.Join(docs, "performance.json"), raw); err != nil {
		return err
	}
	return report.Write(filepath.Join(docs, "img", "performance.svg"), found.Picture())
}
