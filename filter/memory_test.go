package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// A VM returns no memory, so later configurations must re-use what earlier ones have
// left behind. The heap doubles when it is full, and the collector takes numbers among
// the constants for pointers.
func TestMemoryOfLargePoliciesIsBounded(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	var used []uint64
	for i := range 20 {
		require.NoError(t, b.Configure(manyRules(200+i)))
		used = append(used, b.Memory(0)>>20)
	}
	t.Logf("MiB after each: %d", used)
	require.LessOrEqual(t, used[19], uint64(16))
}
