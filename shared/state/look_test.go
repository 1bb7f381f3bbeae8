package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// copyOf is another store with the same values.
func copyOf(m *memory) *memory {
	c := newMemory()
	c.cas, c.monotonicNs = m.cas, m.monotonicNs
	for key, s := range m.values {
		c.values[key] = &stored{append([]byte(nil), s.value...), s.cas}
	}
	return c
}

// TestALookIsAReadWithoutATrace: in random histories with evictions, refunds, holds, clock steps and changes of
// the configuration, a worker finds by Look what it finds by Read, and the store stays as it is. So does a
// worker that has registered nothing, for which another one reads in a copy of the store.
func TestALookIsAReadWithoutATrace(t *testing.T) {
	const histories = 150
	looks, unregistered := 0, 0
	for seed := range uint64(histories) {
		dice := rand.New(rand.NewPCG(seed, 3))
		r := newRun(seed, seed%2 == 0, seed%3 == 0)
		for step := 0; step < runSteps && r.found == "" && !r.unjudged; step++ {
			r.disturb()
			r.finish(4)
			r.advance(r.any())
			r.observe()
			w := r.any()
			known := w
			if dice.IntN(2) == 0 { // a worker that has just begun
				w = r.worker(known.variant, known.offset)
				unregistered++
			}
			at := runWorker{key: numbered(dice.IntN(r.keys)), variant: w.variant, said: dice.Uint32N(mostLimit)}
			at.keyIndex = int(at.key[3])
			key, now := r.keyOf(&at), r.tell(w)
			before := copyOf(r.store)

			var looked, read Entry
			require.Equal(t, OK, w.tables.PrepareLooks(now))
			status := w.table.Look(&looked, key, now)
			require.Equal(t, before.values, r.store.values, "seed %d", seed)
			if status != OK { // another worker has changed the windows: this one finds out by a hit
				require.True(t, r.changes && w == known, "seed %d", seed)
				continue
			}
			reader := w
			if w != known {
				other := &run{store: before, variant: r.variant}
				reader = other.worker(w.variant, w.offset)
				reader.view.now, reader.view.mono = now, r.mono
			}
			require.Equal(t, OK, reader.table.Read(&read, key, now))
			require.Equal(t, standing(reader.table, &read), standing(w.table, &looked), "seed %d step %d", seed, step)
			looks++
		}
	}
	t.Logf("%d looks, %d of them by workers that had registered nothing", looks, unregistered)
}

// standing is all that a look or a read tells of a key.
func standing(t *Table, e *Entry) (text string) {
	text = fmt.Sprint(e.Now, " held ", e.Held(), " blocked ", e.BlockEnd(), " floor ", e.FromFloor)
	for i := range t.def.Windows {
		w, u := &t.def.Windows[i], e.Usage(i)
		text += fmt.Sprint(" ", w.Count(u, e.Now), "/", w.Reset(u, e.Now))
	}
	return text
}

// A look where nobody has counted anything makes neither a seed nor a directory, and reads the directory
// of many tables once.
func TestALookBeforeTheFirstHit(t *testing.T) {
	store := &view{memory: newMemory()}
	var defs []Definition
	for i := range 100 {
		defs = append(defs, definition(fmt.Sprint("x", i), 9, aligned(5, second, 0)))
	}
	tables := NewTables(store, seeded(1), 1, 1)
	for _, def := range defs {
		tables.Table(def)
	}
	var e Entry
	lookAtAll := func() (sum uint32) {
		require.Equal(t, OK, tables.PrepareLooks(second))
		for _, def := range defs {
			table := tables.Table(def)
			require.Equal(t, OK, table.Look(&e, keyed(table, []byte("k")), second))
			sum += e.Usage(0).Used
		}
		return sum
	}
	require.Zero(t, lookAtAll())
	require.Empty(t, store.values)
	require.False(t, tables.Table(defs[0]).open)

	worker := NewTables(&view{memory: store.memory}, seeded(2), 1, 1)
	for want, i := range []int{70, 3, 99, 0, 55} { // so few are registered one by one
		require.True(t, hit(t, worker.Table(defs[i]), []byte("k"), second, 1))
		require.EqualValues(t, want+1, lookAtAll(), "a changed directory is read again")
		require.EqualValues(t, want+1, lookAtAll())
	}
	for i := range defs {
		require.True(t, hit(t, worker.Table(defs[i]), []byte("k"), second, 1))
	}
	require.EqualValues(t, 105, lookAtAll())
	require.True(t, hit(t, tables.Table(defs[0]), []byte("k"), second, 1), "this worker registers the table now")
	require.EqualValues(t, 106, lookAtAll())
}

// After a Split, a look reads the table that the split owner would get, though the directory is the same as before.
func TestALookAfterASplit(t *testing.T) {
	store := newMemory()
	hourly := definition("x", 9, aligned(5, anHour, 0))
	tables := NewTables(store, seeded(1), 1, 1)
	tables.SetSplitOwner(2)
	table := tables.Table(hourly)
	tables.Table(definition("never hit", 9, aligned(5, anHour, 0)))
	require.Equal(t, OK, tables.PrepareLooks(second))
	require.True(t, hit(t, table, []byte("k"), second, 1))
	daily := Definition{Counter: hourly.Counter, Windows: []limit.Window{aligned(5, 24*anHour, 0)}, Capacity: 9}
	sibling := NewTables(store, seeded(1), 1, 2).Table(daily)
	require.True(t, hit(t, sibling, []byte("k"), second, 1), "it takes the window away")
	require.Equal(t, OK, tables.PrepareLooks(second))
	tables.Split()
	require.Equal(t, OK, tables.PrepareLooks(second))
	var e Entry
	require.Equal(t, OK, table.Look(&e, keyed(table, []byte("k")), second))
	require.Zero(t, e.Usage(0).Used)
}

// An entry of a look counts nothing: neither in a table that this worker has registered, nor in one that it has not.
func TestAnEntryOfALookCountsNothing(t *testing.T) {
	const later = 100 * second
	store := newMemory()
	def := definition("x", 9, aligned(5, second, 0))
	counting := NewTables(store, seeded(1), 1, 1).Table(def)
	require.True(t, hit(t, counting, []byte("k"), later, 1))
	looking := NewTables(store, seeded(1), 1, 1)
	require.Equal(t, OK, looking.PrepareLooks(later))
	for _, table := range []*Table{counting, looking.Table(def)} {
		require.Equal(t, OK, looking.PrepareLooks(later))
		before := copyOf(store)
		var e Entry
		for name, write := range map[string]func() Status{
			"commit": func() Status { return table.Commit(&e, 1, true) },
			"deny":   func() Status { return table.Deny(&e, 1, true) },
			"inc":    func() Status { return table.Inc(&e, AllWindows, 1, true) },
			"set":    func() Status { return table.Set(&e, AllWindows, 1, true) },
			"hold":   func() Status { _, status := table.Hold(&e, 1, true); return status },
			"reset":  func() Status { _, status := table.Reset(&e, true); return status },
		} {
			require.Equal(t, OK, table.Look(&e, keyed(table, []byte("k")), later), name)
			require.Equal(t, ReadOnly, write(), name)
		}
		require.Equal(t, OK, table.Look(&e, keyed(table, []byte("k")), second))
		require.True(t, e.Rebased, "the clock was set back")
		table.Persist(&e)
		require.Equal(t, before.values, store.values)
	}
}
