package replay

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// A request that runs for weeks has two million ticks: who interrupts the replay does not wait for them.
func TestInterruptedWhileAnAnswerRuns(t *testing.T) {
	const weeksNs = int64(24 * 24 * time.Hour)
	run := func(ns int64, interrupted bool) time.Duration {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		fleet, err := simulate.NewFleet(ctx, simulate.Options{Wasm: buildtest.Wasm(t), Seed: seed, CacheDir: buildtest.CacheDir()}, "p.yaml",
			[]byte("version: 1\nrules:\n  - {name: slots, algorithm: concurrency, limits: [2]}\n"), noonMs*1e6)
		require.NoError(t, err)
		defer fleet.Close()
		_, _, err = fleet.Serve(noonMs*1e6, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, ns)
		require.NoError(t, err)
		if interrupted {
			interrupt()
		}
		began := time.Now()
		_, _, err = fleet.Serve(noonMs*1e6+ns-1, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, 0)
		require.NoError(t, err)
		return time.Since(began)
	}
	require.Less(t, run(weeksNs, true), run(weeksNs/1000, false))
}
