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
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	const weeksNs = int64(24 * 24 * time.Hour)
	fleet, err := simulate.NewFleet(ctx, simulate.Options{Wasm: buildtest.Wasm(t), Seed: seed, CacheDir: buildtest.CacheDir()}, "p.yaml",
		[]byte("version: 1\nrules:\n  - {name: slots, algorithm: concurrency, limits: [2]}\n"), noonMs*1e6)
	require.NoError(t, err)
	defer fleet.Close()
	_, _, err = fleet.Serve(noonMs*1e6, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, weeksNs)
	require.NoError(t, err)
	interrupt()
	began := time.Now()
	_, _, err = fleet.Serve(noonMs*1e6+weeksNs-1, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, 0)
	require.NoError(t, err)
	require.Less(t, time.Since(began), 20*time.Second)
}
