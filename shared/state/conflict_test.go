package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A configuration has a conflict if another one of its owner has counted and has
// taken away a counter or a window.
func TestConflicts(t *testing.T) {
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	raised := aligned(50, anHour, 0)
	for name, c := range map[string]struct {
		next   Definition
		owner  string
		counts bool
		want   bool
	}{
		"a successor that does not count yet": {definition("x", 100, day), "o", false, false},
		"one with other limits":               {definition("x", 100, raised, day), "o", true, false},
		"one with a window more":              {definition("x", 100, hour, day, perKey(5, anHour)), "o", true, false},
		"one with a window less":              {definition("x", 100, day), "o", true, true},
		"one without the counter":             {definition("y", 100, hour, day), "o", true, true},
		"one of another name":                 {definition("x", 100, day), "p", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			store, now := newMemory(), 100*second
			old := configured(store, "o", 1, definition("x", 100, hour, day))
			old.tables.SetSplitOwner(OwnerID("split"))
			require.True(t, hit(t, old, []byte("k"), now, 3))
			next := configured(store, c.owner, 2, c.next)
			if c.counts {
				require.True(t, hit(t, next, []byte("k"), now, 1))
			}
			for range 3 {
				require.Equal(t, OK, next.tables.Heartbeat(now))
				require.Equal(t, OK, old.tables.Heartbeat(now))
				require.Equal(t, c.want, old.tables.HasConflict())
				require.False(t, next.tables.HasConflict())
			}
		})
	}
}

// A conflict ends when the window comes back. If an owner was removed from its
// tables for being late, its conflict ends with the next heartbeat.
func TestConflictsThatEnd(t *testing.T) {
	store, now := newMemory(), 100*second
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	old := configured(store, "o", 1, definition("x", 100, hour, day))
	require.True(t, hit(t, old, []byte("k"), now, 1))
	require.True(t, hit(t, configured(store, "o", 2, definition("x", 100, day)), []byte("k"), now, 1))
	require.Equal(t, OK, old.tables.Heartbeat(now))
	require.True(t, old.tables.HasConflict())
	require.True(t, hit(t, configured(store, "o", 3, definition("x", 100, hour, day)), []byte("k"), now, 1))
	require.Equal(t, OK, old.tables.Heartbeat(now))
	require.False(t, old.tables.HasConflict())

	require.Equal(t, OK, old.tables.dropOwners([]uint64{OwnerID("o")}, now))
	require.Equal(t, OK, old.tables.Heartbeat(now))
	require.True(t, old.tables.HasConflict())
	require.Equal(t, OK, old.tables.Heartbeat(now))
	require.False(t, old.tables.HasConflict())
}

// When one worker splits, the others with the same conflict follow at their next
// heartbeat, and all of them count together.
func TestWorkersSplitTogether(t *testing.T) {
	for name, sibling := range map[string]Definition{
		"another window":  definition("x", 100, aligned(9, 24*anHour, 0)),
		"another counter": definition("y", 100, aligned(5, anHour, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			store, now, key := newMemory(), 100*second, []byte("k")
			def := definition("x", 100, aligned(5, anHour, 0))
			var workers []*Table
			for range 3 {
				w := configured(store, "o", 1, def)
				w.tables.SetSplitOwner(OwnerID("split"))
				require.True(t, hit(t, w, key, now, 1))
				workers = append(workers, w)
			}
			other := configured(store, "o", 2, sibling)
			require.True(t, hit(t, other, key, now, 1))
			heartbeats := func() {
				for _, w := range append([]*Table{other}, workers...) {
					require.Equal(t, OK, w.tables.Heartbeat(now))
				}
			}
			heartbeats()
			require.True(t, workers[0].tables.HasConflict())
			workers[0].tables.Split()
			require.True(t, hit(t, workers[0], key, now, 1))
			heartbeats()
			before := used(t, workers[0], key, now)
			for i, w := range workers {
				require.True(t, w.tables.split, "worker %d", i)
				require.False(t, w.tables.HasConflict(), "worker %d", i)
				require.Equal(t, before, used(t, w, key, now), "worker %d", i)
			}
			passed := 0
			for i := range 9 {
				if hit(t, workers[i%3], key, now, 1) {
					passed++
				}
				heartbeats()
			}
			require.EqualValues(t, 5, before[0]+uint32(passed), "they count together")
		})
	}
}
