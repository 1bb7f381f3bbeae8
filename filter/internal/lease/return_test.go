package lease_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// A tick reads nothing of what cannot be idle yet: ticks come each 10 ms while a
// request waits, and a worker may hold thousands of grants.
func TestATickReadsOnlyWhatMayBeIdle(t *testing.T) {
	w, s := pair(t, perUser)
	const users = 50
	for range 3 { // then each has units ahead of need
		for i := range users {
			w.request(fmt.Sprint("user", i))
			w.exchange(s)
		}
		w.proxy.Clock += 100 * ms
	}
	reads := func(ticks int) (n int) {
		w.proxy.Calls = nil
		for range ticks {
			w.proxy.Clock += 10 * ms
			w.tick()
			w.exchange(s)
		}
		for _, call := range w.proxy.Calls {
			if call == "get" {
				n++
			}
		}
		return n
	}
	require.LessOrEqual(t, reads(100), 2*users, "once a second, and one second begins")
	require.Empty(t, w.stream.Asks)
	reads(400)
	require.Zero(t, reads(100), "all have gone back")
}

// Grants that are spent at once leave room for others to be returned.
func TestSpentGrantsLeaveTheList(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["1000000/1m"],"lease":1}`)
	for i := range 12_000 { // of ten keys, within a second; each grant has a unit for the next request
		w.request(fmt.Sprint("user", i/2%10))
		w.exchange(s)
		if w.proxy.Clock += ms / 16; i%160 == 0 {
			w.tick()
		}
	}
	require.Greater(t, s.asked, 5000)
	counts := map[string]uint64{}
	w.engine.EachMetric(func(m engine.Series, count uint64) { counts[m.Metric] += count })
	require.Contains(t, counts, "leased_units_lost")
	require.Zero(t, counts["leased_units_lost"])
}
