package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A later configuration of fewer windows may have made the table, which then keeps no
// standing of the others.
func TestALeaseInATableOfFewerWindows(t *testing.T) {
	rule := func(limits string) string {
		return `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[` + limits + `]}`
	}
	p := hosttest.New()
	p.Clock = 1_700_000_000_123_456_789
	p.With("u", "a")
	identity := Identity{Owner: 1, ConfiguredNs: p.Clock - 1e9, Random: func(b []byte) { clear(b) }}
	New(hosttest.Policy(t, rule(`"50/1s"`)), p, identity).Decide()
	identity.ConfiguredNs -= 1e9
	e := New(hosttest.Policy(t, rule(`"50/1s","500/1m","900/1h"`)), p, identity)
	e.Quota = Quota{TimeoutNs: 100_000_000, Stream: 1}
	v := e.Decide()
	require.True(t, v.Pending)
	wants := v.Wants(nil)
	grant := quota.Grant{Number: 1, Units: 20, Leased: true, ValidNs: 500_000_000, Windows: make([]quota.Standing, 3)}
	e.Receive(&wants[0], Answer{Grant: grant, SentNs: p.Clock, Stream: 1, Cost: 1})
	e.Decide()
	e.Settle(&wants[0], nil)
	v = e.Decide()
	require.True(t, v.Allowed)
	require.False(t, v.Attempts[0].Known)
}
