package lease_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/explain"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// TestExplainALease: what a rule of scope cluster makes of a request, and that it
// would ask where it cannot know.
func TestExplainALease(t *testing.T) {
	w, s := pair(t, perUser)
	explained := func() result.Explanation {
		text := explain.Explain(nil, w.engine, w.proxy, &explain.Request{Method: "GET", Path: "/", Headers: map[string][]string{"u": {"a"}}})
		var x result.Explanation
		require.NoError(t, json.Unmarshal(text, &x), "%s", text)
		require.Equal(t, string(text), string(x.Append(nil)))
		return x
	}
	x := explained()
	require.True(t, x.Pending)
	require.Nil(t, x.Allowed)
	require.True(t, x.Rules[0].Pending)
	require.Nil(t, x.Rules[0].Allowed)
	require.Equal(t, &result.Lease{}, x.Rules[0].Lease)
	require.Empty(t, x.Rules[0].Windows, "the service has not said anything")

	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 50 * ms
	}
	x = explained()
	held := x.Rules[0].Lease
	require.Positive(t, held.Units)
	require.Positive(t, held.EndsNs)
	require.False(t, x.Pending)
	require.True(t, *x.Allowed)
	require.True(t, *x.Rules[0].Allowed)
	require.Greater(t, x.Rules[0].Windows[0].Used, uint32(10), "as the service has said last")
	require.Equal(t, held, explained().Rules[0].Lease, "explaining spends nothing")

	w.proxy.Clock += 20 * second
	x = explained()
	require.True(t, x.Pending)
	require.Zero(t, x.Rules[0].Lease.Units)
	require.NotEmpty(t, x.Rules[0].Windows, "it is still known what the service has said last")

	w.engine.Leases.Silent = true
	x = explained()
	require.False(t, x.Pending)
	require.True(t, *x.Allowed, "on_unavailable decides")
	require.Equal(t, &result.Lease{Silent: "local"}, x.Rules[0].Lease)
}

// While the service is silent a key's windows are shifted by its jitter, as the service
// shifts them.
func TestAShareIsOfTheKeysOwnWindows(t *testing.T) {
	w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[{"requests":100,"per":"1h","jitter":50}]}`)
	w.engine.Leases.Silent = true
	w.proxy.With("u", "a")
	s := w.engine.Decide().Subjects[0]
	require.True(t, s.Allowed)
	require.NotZero(t, s.Windows[0].OffsetNs)
	require.Equal(t, s.Windows[0].OffsetNs, s.Limits.Windows[0].OffsetNs)
}
