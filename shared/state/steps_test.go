package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/steptest"
)

// TestTheClockSteps: rule and floors, by the judge of all limiters whose clock steps.
func TestTheClockSteps(t *testing.T) {
	steptest.Judge(t, 1500, func(windows []limit.Window, capacity uint32, clock *steptest.Clock) steptest.Limiter {
		store := newMemory()
		store.clock = func() int64 { return clock.Ns }
		table := configured(store, "o", 1, definition("x", capacity, windows...))
		var e Entry
		hits := 0
		return steptest.Limiter{
			OfKey: func(w limit.Window, key int) limit.Window { return w.Shifted(w.KeyShift(shiftHash(numbered(key)))) },
			Hit: func(key int, cost uint32) bool {
				if hits++; capacity < 8 && hits%9 == 0 { // keys have to go: cleaning gives nobody more
					_, status := table.Clean(&e, windows, clock.Ns)
					require.Equal(t, OK, status)
				}
				if hitInto(t, table, &e, numbered(key), clock.Ns, cost) {
					return true
				}
				require.False(t, t.Failed())
				table.Persist(&e)
				return false
			},
		}
	})
}
