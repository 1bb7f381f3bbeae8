package lease_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLevelsAreBounded: a client that invents keys while the service is silent takes no more
// memory, and when it is back, requests do not wait for all of them to be stated.
func TestLevelsAreBounded(t *testing.T) {
	w, s := holdingPair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["4"],"capacity":200000,"hold":"80s","on_unavailable":"local"}`)
	w.engine.Leases.Silent, w.down = true, true
	for n := range 1<<16 + 100 {
		w.request(strconv.Itoa(n))
	}
	require.Equal(t, 1<<16+100, w.admitted())
	w.down = false
	state := func() (messages int) { // as fast as a service takes asks of one stream
		for ; w.serve(s, 1) > 0; messages++ {
			w.proxy.Clock += 6 * ms
		}
		return messages
	}
	w.proxy.Clock += second
	w.tick()
	state()
	w.proxy.Clock += second
	w.tick()
	id := w.request("0")
	w.serve(s, 2)
	require.Contains(t, w.verdicts, id)
	state()
	require.LessOrEqual(t, s.asked, 1<<16+2)
	require.GreaterOrEqual(t, s.asked, 1<<16)

	// All are renewed at once in as many round trips as fit a store's quiet time by far.
	w.proxy.Clock += 10 * second
	w.tick()
	asked := s.asked
	require.LessOrEqual(t, state(), 130)
	require.Equal(t, 1<<16, s.asked-asked)
}
