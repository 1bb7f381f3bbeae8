package main_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// A VM returns no memory, so later configurations must re-use what earlier ones have
// left behind. By itself Go's runtime would finish a collection only after five times
// as much.
func TestMemoryOfLargePoliciesIsBounded(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	var used []uint64
	for i := range 10 {
		require.NoError(t, b.Configure(manyRules(1000+i)))
		used = append(used, b.Memory(0)>>20)
	}
	t.Logf("MiB after each: %d", used)
	require.LessOrEqual(t, used[9], used[4]*5/4)
}

// Several policies of a thousand rules cause several garbage collections. None may
// call poll_oneoff, which ends the VM on the oldest supported Envoy, as it does here.
func TestGarbageIsCollectedWithoutWaiting(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	for i := range 8 {
		require.NoError(t, b.Configure(manyRules(900+i)))
		for j := range 50 {
			res := b.serve(t, 0, &sim.Request{Host: fmt.Sprintf("h%d.example", j), Path: fmt.Sprintf("/v1/r%d/x", j), Headers: alice.Headers})
			require.Equal(t, 200, res.Status)
		}
		require.NoError(t, b.Tick(0))
		require.NoError(t, b.Failed(0))
	}
}
