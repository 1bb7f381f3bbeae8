package lease_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// TestOperationsOnLeases: a proxy says what it holds of a key, and leaves all other
// questions about a key to the quota service. Cleaning takes no lease.
func TestOperationsOnLeases(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"]},{"name":"own","key":[{"header":"u"}],"limits":["100/1m"]}`)
	do := func(name, rule string, key ...string) (string, error) {
		text, err := w.engine.Operate(engine.Operation{Name: name, Rule: rule, Key: key, N: 1})
		return string(text), err
	}
	value := func(name string, key ...string) (value int) {
		text, err := do(name, "r", key...)
		require.NoError(t, err)
		_, err = fmt.Sscanf(text, `{"value":%d}`, &value)
		require.NoError(t, err, text)
		return value
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
	require.Contains(t, stats, `{"rule":"r","keys":1,`)
	require.NotContains(t, stats, `"bytes":0,`)
	require.Zero(t, value("clean"))
	require.Equal(t, held-1, value("leased", "a"))

	_, err = do("get", "r", "a")
	require.EqualError(t, err, `rule "r" has scope cluster: its counters are the quota service's, which sluice counters asks without --proxy`)
	_, err = do("leased", "own", "a")
	require.EqualError(t, err, `rule "own" has scope proxy: it leases nothing`)

	w.proxy.Clock += 60 * second
	require.Zero(t, value("leased", "a"))
	require.Equal(t, 1, value("clean"), "nothing is held")
	stats, err = do("stats", "r")
	require.NoError(t, err)
	require.Contains(t, stats, `{"rule":"r","keys":0,`)

	// While the service is silent the proxy says what it has counted by itself, of its share.
	w.engine.Leases.Silent = true
	for range 3 {
		w.request("b")
	}
	for key, used := range map[string]uint32{"b": 3, "c": 0} {
		text, err := do("leased", "r", key)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(text, fmt.Sprintf(`{"value":0,"silent":"local","windows":[{"limit":100,"per_ns":60000000000,"used":%d,`, used)), text)
	}
}
