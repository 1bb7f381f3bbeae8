package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxRules is how many rules a policy may have.
const maxRules = policy.MaxRules

// compile measures what the largest policy costs whoever reads it.
func (b *bench) compile(ctx context.Context) error {
	file, err := b.file("largest.yaml", policyOf(maxRules, 10))
	if err != nil {
		return err
	}
	err = b.take(ctx, []column{
		{"`sluice validate`", "ms", 0},
		{"its memory", "MiB", 0},
		{"reading and judging the JSON, natively", "ms", 0},
		{"allocations of that", "", 0},
		{"bytes of that", "MB", 0},
	}, func() ([]float64, error) {
		ran, err := b.cli(ctx, "validate", "-f", file)
		if err != nil {
			return nil, err
		}
		read := testing.Benchmark(readPolicy)
		return []float64{ms(ran.Wall), ran.MaxMiB, float64(read.NsPerOp()) / 1e6, float64(read.AllocsPerOp()), float64(read.AllocedBytesPerOp()) / 1e6}, nil
	})
	if err != nil {
		return err
	}
	return b.configure(ctx)
}

// readPolicy reads the largest policy as the filter does, outside wasm.
func readPolicy(b *testing.B) {
	text := policyJSON(maxRules)
	b.ReportAllocs()
	for b.Loop() {
		n, err := policy.ParseJSON(text)
		if err != nil {
			b.Fatal(err)
		}
		if _, problems := policy.Read(n); len(problems) > 0 {
			b.Fatal(problems)
		}
	}
}

// configure measures on_configure of the compiled filter, and what it does then: the
// first request of each rule, and a tick with all tables in use.
func (b *bench) configure(ctx context.Context) error {
	wasm, err := os.ReadFile(b.wasm)
	if err != nil {
		return err
	}
	return b.take(ctx, []column{
		{"on_configure in the compiled filter, on wazero", "ms", 0},
		{"the first request of each rule, on average", "µs", 0},
		{"a tick once every rule has counted", "ms", 0},
	}, func() ([]float64, error) {
		host, err := sim.New(ctx, sim.Options{Wasm: wasm, VMID: "sluice", PluginName: "sluice", CacheDir: filepath.Join(b.dir, "compiled")})
		if err != nil {
			return nil, err
		}
		defer host.Close()
		return configured(host)
	})
}

func configured(host *sim.Host) ([]float64, error) {
	if err := host.Configure(policyJSON(1)); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := host.ConfigureWorker(0, policyJSON(maxRules)); err != nil {
		return nil, err
	}
	configure := time.Since(began)
	began = time.Now()
	for i := range maxRules {
		answer, err := host.Serve(0, &sim.Request{Path: fmt.Sprintf("/v%d/", i), ClientIP: "192.0.2.7"})
		if err != nil {
			return nil, err
		}
		if answer.Status != 200 {
			return nil, errors.New("a first request was denied")
		}
	}
	first := time.Since(began) / maxRules
	began = time.Now()
	err := host.Tick(0)
	return []float64{ms(configure), float64(first) / float64(time.Microsecond), ms(time.Since(began))}, err
}
