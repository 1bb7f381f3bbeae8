package directory

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const second = int64(1_000_000_000)

// A directory finds a counter's tables, and a free number, as soon as it is read, and still after a table has gone.
func TestADirectoryFindsItsTables(t *testing.T) {
	window := limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: second}
	def := Definition{Counter: CounterID{7}, Windows: []limit.Window{window}, Capacity: 9}
	var made Directory
	made.Register(Owner{1, 1}, &def, second)
	d, ok := Read(made.Append(nil))
	require.True(t, ok)
	require.Equal(t, []int{0}, d.TablesOf(def.Counter))
	require.EqualValues(t, 1, d.freeNumber())

	d.Tables[0].Leave(d.Tables[0].Owners[0], second)
	d.removeWaiting(3600 * second)
	require.Empty(t, d.TablesOf(def.Counter))
	require.Zero(t, d.freeNumber())
}
