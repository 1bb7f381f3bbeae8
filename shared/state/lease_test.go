package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// charged commits units of a key and returns what must be known to give them back.
func charged(t *testing.T, table *Table, key []byte, now int64, units uint32) Charge {
	t.Helper()
	var e Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
	require.True(t, table.Lendable(&e))
	require.Equal(t, OK, table.Commit(&e, units, true))
	return table.Charged(&e, shiftHash(key))
}

// Units of a charge go back to the windows they were counted in, and only there.
func TestUnitsOfAChargeGoBack(t *testing.T) {
	const now = 100 * second
	own := jittered(10*second, 50)
	own.Limit = 50
	windows := definition("x", 4, aligned(50, 2*second, 0), slidingCounter(50, 3*second), own)
	for _, c := range []struct {
		name      string
		meanwhile func(table *Table, key []byte)
		atNs      int64
		changed   bool // in shared data
		back      bool
		want      []uint32 // by the order of windows
	}{
		{"at once", nil, now, true, true, []uint32{7, 7, 7}},
		{"in the next window of one", nil, now + 2*second, true, true, []uint32{0, 7, 7}},
		{"when the sliding counter has rolled", nil, now + 3*second, true, true, []uint32{0, 4, 7}},
		{"beside hits of others", func(table *Table, key []byte) { hit(t, table, key, now+1, 5) }, now + 2, true, true, []uint32{12, 12, 12}},
		{"after all windows", nil, now + 40*second, false, true, []uint32{0, 0, 0}},
		{"by a clock that has stepped back", nil, now - 1, false, false, []uint32{10, 10, 10}},
		{"after a set", func(table *Table, key []byte) {
			var e Entry
			require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
			require.Equal(t, OK, table.Set(&e, AllWindows, 20, true))
		}, now, false, false, []uint32{20, 20, 20}},
		{"after a reset", func(table *Table, key []byte) {
			var e Entry
			require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
			_, status := table.Reset(&e, true)
			require.Equal(t, OK, status)
			hit(t, table, key, now, 4)
		}, now, false, false, []uint32{4, 4, 4}},
		{"after a wild clock was put right", func(table *Table, key []byte) {
			hit(t, table, key, now+20*second, 1) // all that was counted has ended by this clock
			require.True(t, hit(t, table, key, now-60*second, 2))
		}, now - 60*second, false, false, []uint32{3, 3, 3}},
		{"under another owner", func(table *Table, _ []byte) { table.tables.Part() }, now, false, false, []uint32{10, 10, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := newMemory()
			table := configured(store, "o", 1, windows)
			key := []byte("k")
			charge := charged(t, table, key, now, 10)
			if c.atNs < now-second {
				charge.CalledNs = c.atNs // the record's time was ahead of the clock
			}
			if c.meanwhile != nil {
				c.meanwhile(table, key)
			}
			before := store.writes
			require.Equal(t, c.back, table.GiveBack(new(Entry), &charge, c.atNs, 3))
			require.Equal(t, c.changed, store.writes > before)
			require.Equal(t, c.want, used(t, configured(store, "o", 1, windows), key, c.atNs))
		})
	}
}
