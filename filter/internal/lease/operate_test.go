package lease_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
)

// TestOperationsOnLeases: a proxy says what it holds of a key, and leaves all other
// questions about a key to the quota service. Cleaning takes no lease.
func TestOperationsOnLeases(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"]},{"name":"own","key":[{"header":"u"}],"limits":["100/1m"]}`)
	do := func(name, rule string, key ...string) (engine.Result, error) {
		return w.engine.Operate(engine.Operation{Name: name, Rule: rule, Key: key, N: 1})
	}
	value := func(name string, key ...string) int64 {
		result, err := do(name, "r", key...)
		require.NoError(t, err)
		return result.Value
	}
	for range 10 {
		w.request("a")
		w.exchange(s)
		w.proxy.Clock += 50 * ms
	}
	held := value("leased", "a")
	require.Positive(t, held)
	require.Zero(t, value("leased", "b"))
	w.request("a")
	require.Equal(t, held-1, value("leased", "a"))

	stats, err := do("stats", "r")
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Rules[0].Keys)
	require.Positive(t, stats.Rules[0].Bytes)
	require.Zero(t, value("clean"))
	require.Equal(t, held-1, value("leased", "a"))

	_, err = do("get", "r", "a")
	require.EqualError(t, err, `rule "r" has scope cluster: its counters are the quota service's, which sluice counters asks without --proxy`)
	_, err = do("leased", "own", "a")
	require.EqualError(t, err, `rule "own" has scope proxy: it leases nothing`)

	w.proxy.Clock += 60 * second
	require.Zero(t, value("leased", "a"))
	require.EqualValues(t, 1, value("clean"), "nothing is held")
	stats, err = do("stats", "r")
	require.NoError(t, err)
	require.Zero(t, stats.Rules[0].Keys)

	// While the service is silent the proxy says what it has counted by itself, of its share.
	result, err := do("leased", "r", "a")
	require.NoError(t, err)
	require.Nil(t, result.Subject)
	w.engine.Leases.Silent = true
	for range 3 {
		w.request("b")
	}
	for key, used := range map[string]uint32{"b": 3, "c": 0} {
		result, err := do("leased", "r", key)
		require.NoError(t, err)
		text := string(respond.AppendResult(nil, &result))
		require.True(t, strings.HasPrefix(text, fmt.Sprintf(`{"value":0,"silent":"local","windows":[{"limit":50,"per_ns":60000000000,"used":%d,`, used)), text)
	}
}
