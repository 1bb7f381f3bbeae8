package lease_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

const saidByV = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"on_unavailable":"deny",` +
	`"limits":[{"requests":{"header":"v","trusted":true,"default":10,"max":100000},"per":"1m"}]`

// leased is what the proxy says that it holds of a user's key.
func (w *worker) leased(t *testing.T, user string) (units int) {
	text, err := w.engine.Operate(engine.Operation{Name: "leased", Rule: "r", Key: []string{user}})
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(text), `{"value":%d}`, &units)
	require.NoError(t, err)
	return units
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
