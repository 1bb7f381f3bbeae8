package lease_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

const saidByV = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"on_unavailable":"deny",` +
	`"limits":[{"requests":{"header":"v","trusted":true,"default":10,"max":100000},"per":"1m"}]`

// A request is decided by its own number, whatever others of its key have been granted or
// denied under theirs.
func TestUnitsAreOfTheNumberThatTheyWereGrantedUnder(t *testing.T) {
	w, s := pair(t, saidByV+"}")
	passed := func(user string, n int) (passed int) {
		before := w.admitted()
		for range n {
			w.request(user)
			w.exchange(s)
		}
		return w.admitted() - before
	}
	require.Equal(t, 20, passed("a 1000", 20))
	require.Positive(t, w.leased(t, "a"), "held under 1000")
	require.Zero(t, passed("a 15", 3), "20 and more are used")
	require.Equal(t, 3, passed("a 1000", 3), "no denial under another number holds")
	require.Zero(t, passed("a x", 1), "the default")
	require.Equal(t, 10, passed("b", 12))
	require.Equal(t, 5, passed("b 15", 7))
	require.Zero(t, passed("c 0", 2))
}

// leased is what the proxy says that it holds of a user's key.
func (w *worker) leased(t *testing.T, user string) (units int) {
	text, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{user}})
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(text), `{"value":%d}`, &units)
	require.NoError(t, err)
	return units
}

// While the service is silent all numbers of a key count in one record, each up to its
// share.
func TestNumbersShareTheRecordOfASilentService(t *testing.T) {
	w, _ := pair(t, strings.Replace(saidByV, `"deny"`, `"local"`, 1)+"}")
	w.engine.Leases.SetProxies(2)
	w.engine.Leases.Silent = true
	for i, want := range []bool{true, true, true, false} {
		require.Equal(t, want, w.verdicts[w.request("a 6")], i)
	}
	require.False(t, w.verdicts[w.request("a 4")])
	require.True(t, w.verdicts[w.request("a 8")])
	require.False(t, w.verdicts[w.request("a 8")])
}

// More numbers than a stream has room for definitions are all decided by
// the service itself, each by its own; and none is ever unknown to it.
func TestMoreNumbersThanDefinitionsOnOneStream(t *testing.T) {
	w, s := pair(t, saidByV+`,"lease":"off"}`)
	const numbers = 1500
	for i := range 2 * numbers {
		n := i % numbers
		w.request(fmt.Sprintf("u%d %d", n, n%3+n))
		w.proxy.Clock += ms / 10
		if i%7 == 0 {
			w.exchange(s)
		}
	}
	w.exchange(s)
	want := 0
	for n := range numbers {
		want += min(2, n%3+n)
	}
	require.Equal(t, want, w.admitted())
	require.LessOrEqual(t, s.defined, s.asked, "at most one with each ask")

	// A few numbers are defined once, however many requests say them.
	s.asked, s.defined = 0, 0
	for i := range 600 {
		w.request(fmt.Sprintf("v%d %d", i, 7+i%100))
		if i%7 == 0 {
			w.exchange(s)
		}
	}
	w.exchange(s)
	require.Equal(t, 600, s.asked)
	require.LessOrEqual(t, s.defined, 200)
}
