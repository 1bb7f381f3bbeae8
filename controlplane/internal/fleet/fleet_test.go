package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// newFleet starts a proxy with a policy.
func newFleet(t *testing.T, text string) *Proxies {
	t.Helper()
	f, err := ReadPolicy("policy.yaml", []byte(text))
	require.NoError(t, err)
	p, err := New(t.Context(), Options{Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir()}, f, int64(time.Hour))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// While time passes, a proxy has the ticks by which it returns what it has leased.
func TestLeasesAreReturnedInTime(t *testing.T) {
	p := newFleet(t, `{version: 1, rules: [{name: r, scope: cluster, limits: ["1000/1h"]}]}`)
	for range 2 {
		p.Pass(p.Now() + int64(time.Millisecond))
		_, err := p.Begin(At{}, &sim.Request{})
		require.NoError(t, err)
	}
	used := func() (used uint32, leased int64) {
		o, err := p.Operate(At{}, counters.Request{Name: "get", Rule: "r"}, nil)
		require.NoError(t, err)
		return o.Result.Windows[0].Used, *o.Leased
	}
	before, leased := used()
	require.Positive(t, leased)
	require.Equal(t, 2+uint32(leased), before)
	p.Pass(p.Now() + int64(time.Minute))
	after, leased := used()
	require.Zero(t, leased)
	require.Equal(t, uint32(2), after)
}

// A request that runs for its hold ends when time passes the end of the hold, and not before.
func TestRequestsEndInTime(t *testing.T) {
	const policy = "{version: 1, rules: [{name: r, algorithm: concurrency, limits: [1], hold: 30s}]}"
	p := newFleet(t, policy)
	x, err := p.Begin(At{}, &sim.Request{})
	require.NoError(t, err)
	require.True(t, p.RunForHold(x))
	began := p.Now()
	p.Pass(began + int64(30*time.Second) - 1)
	require.Equal(t, 1, p.Open())
	p.Pass(began + int64(30*time.Second))
	require.Zero(t, p.Open())
	require.True(t, x.Ended())
	p.Pass(began)
	require.Equal(t, began, p.Now(), "the time may step back")
}
