// The scale command measures the parts beside the hot path at the sizes they
// must bear: a policy of as many rules as there may be, a control plane with a
// thousand proxies, the simulator, and a real Envoy whose policy changes.
//
// Its invariant: what is measured is the compiled command line and filter that
// users run, from outside, and no process it has started outlives it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

func main() {
	b := &bench{}
	flag.StringVar(&b.sluice, "sluice", "", "`path` of the command line")
	flag.StringVar(&b.wasm, "wasm", "", "`path` of the filter")
	flag.StringVar(&b.envoy, "envoy", "", "`path` of the Envoy")
	flag.StringVar(&b.docs, "docs", "docs", "`folder` whose scale.md and scale.json are written")
	flag.IntVar(&b.rounds, "rounds", 3, "how often each figure is taken")
	only := flag.String("only", ".", "regular `expression` for the parts to measure; figures of the others stay")
	flag.Parse()
	which, err := regexp.Compile(*only)
	if err != nil || flag.NArg() > 0 || b.sluice == "" || b.wasm == "" || b.envoy == "" || b.rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err = b.run(ctx, which)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	sluice, wasm, envoy string // paths
	docs                string // folder
	rounds              int
	dir                 string // of this run's files

	result result
	part   string // being measured
}

// parts in the order of the table.
func (b *bench) parts() []part {
	return []part{
		{"compile", "A policy of 10,000 rules", b.compile},
		{"fleet", "serve with 1,000 proxies", b.fleet},
		{"simulate", "simulate", b.simulate},
		{"change", "A change of policy in Envoy", b.change},
	}
}

type part struct {
	name, title string
	measure     func(context.Context) error
}

func (b *bench) run(ctx context.Context, which *regexp.Regexp) (err error) {
	for _, path := range []*string{&b.sluice, &b.wasm, &b.envoy} { // they are run from elsewhere
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if b.dir, err = os.MkdirTemp("", "scale-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.describe(ctx); err != nil {
		return err
	}
	for _, p := range b.parts() {
		if !which.MatchString(p.name) {
			continue
		}
		b.part = p.title
		if err := p.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	before, err := former(b.docs)
	if err != nil {
		return err
	}
	return b.result.join(before, b.parts()).write(b.docs)
}

// row adds a figure to the result and says so. A target is the most it may be,
// 0 for none.
func (b *bench) row(what, unit string, target float64, values ...float64) {
	r := row{Part: b.part, What: what, Unit: unit, Values: values, Target: target}
	b.result.Rows = append(b.result.Rows, r)
	fmt.Println(r.line())
}

// repeat takes figures once a round: take returns the values of one round, one
// for each name.
func (b *bench) repeat(ctx context.Context, take func(round int) ([]float64, error)) ([][]float64, error) {
	var columns [][]float64
	for round := range b.rounds {
		values, err := take(round)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		if columns == nil {
			columns = make([][]float64, len(values))
		}
		for i, v := range values {
			columns[i] = append(columns[i], v)
		}
	}
	return columns, nil
}
