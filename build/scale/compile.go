package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// most is how many rules a policy may have.
const most = policy.MaxRules

// compile measures what a policy of as many rules as there may be costs
// whoever reads it.
func (b *bench) compile(ctx context.Context) error {
	file, err := b.file("most.yaml", policyOf(most, 10))
	if err != nil {
		return err
	}
	columns, err := b.repeat(ctx, func(int) ([]float64, error) {
		r, err := b.command(ctx, "validate", "-f", file)
		if err != nil {
			return nil, err
		}
		took, allocations, bytes, err := readPolicy()
		return []float64{milliseconds(r.wall), r.mostMiB, took, allocations, bytes}, err
	})
	if err != nil {
		return err
	}
	b.row("`sluice validate`", "ms", 0, columns[0]...)
	b.row("its memory", "MiB", 0, columns[1]...)
	b.row("reading and judging the JSON, natively", "ms", 0, columns[2]...)
	b.row("allocations of that", "", 0, columns[3]...)
	b.row("bytes of that", "MB", 0, columns[4]...)
	return b.configure(ctx)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// readPolicy reads the largest policy as the filter does, outside wasm.
func readPolicy() (ms, allocations, megabytes float64, err error) {
	text := policyJSON(most)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	n, err := policy.ParseJSON(text)
	if err != nil {
		return 0, 0, 0, err
	}
	if _, problems, _ := policy.Read(n); len(problems) > 0 {
		return 0, 0, 0, fmt.Errorf("the largest policy is not valid: %s", problems[0].String())
	}
	ms = milliseconds(time.Since(began))
	runtime.ReadMemStats(&after)
	return ms, float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc-before.TotalAlloc) / 1e6, nil
}

// configure measures on_configure of the compiled filter, and what it does
// then: the first request of each rule, and a tick with all tables in use.
func (b *bench) configure(ctx context.Context) error {
	wasm, err := os.ReadFile(b.wasm)
	if err != nil {
		return err
	}
	columns, err := b.repeat(ctx, func(round int) ([]float64, error) {
		host, err := sim.New(ctx, sim.Options{Wasm: wasm, VMID: "sluice", PluginName: "sluice", CacheDir: filepath.Join(b.dir, "compiled")})
		if err != nil {
			return nil, err
		}
		defer host.Close()
		return configured(host)
	})
	if err != nil {
		return err
	}
	b.row("on_configure in the compiled filter, on wazero", "ms", 0, columns[0]...)
	b.row("the first request of each rule, on average", "µs", 0, columns[1]...)
	b.row("a tick once every rule has counted", "ms", 0, columns[2]...)
	return nil
}

func configured(host *sim.Host) ([]float64, error) {
	if err := host.Configure(policyJSON(1)); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := host.ConfigureWorker(0, policyJSON(most)); err != nil {
		return nil, err
	}
	configure := time.Since(began)
	began = time.Now()
	for i := range most {
		answer, err := host.Serve(0, &sim.Request{Path: fmt.Sprintf("/v%d/", i), ClientIP: "192.0.2.7"})
		if err != nil {
			return nil, err
		}
		if answer.Status != 200 {
			return nil, errors.New("a first request was denied")
		}
	}
	first := time.Since(began) / most
	began = time.Now()
	if err := host.Tick(0); err != nil {
		return nil, err
	}
	return []float64{milliseconds(configure), float64(first) / float64(time.Microsecond), milliseconds(time.Since(began))}, nil
}
