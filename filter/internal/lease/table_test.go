package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// A later configuration of fewer windows may have made the table, which then keeps no
// standing of the others.
func TestALeaseInATableOfFewerWindows(t *testing.T) {
	rule := func(limits string) string {
		return `{"name":"r","scope":"cluster","key":[{"header":"u"}],"lease":20,"limits":[` + limits + `]}`
	}
	w, s := pair(t, rule(`"500/1s","500/1m","900/1h"`))
	w.proxy.With("u", "a")
	later := engine.Identity{Owner: 1, ConfiguredNs: w.proxy.Clock, Random: func(b []byte) { clear(b) }}
	engine.New(hosttest.Policy(t, rule(`"500/1s"`)), w.proxy, later).Decide()
	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 10 * ms
	}
	require.Equal(t, 10, w.admitted())
	v := w.engine.Decide()
	require.True(t, v.Allowed)
	require.False(t, v.Subjects[0].Known)
}
