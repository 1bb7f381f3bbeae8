package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

func TestOwnersShareWhatTheyDefineAlike(t *testing.T) {
	store := newMemory()
	def := definition("x", 100, aligned(3, anHour, 0))
	a, b := configured(store, "a", 1, def), configured(store, "b", 2, def)
	require.True(t, hit(t, a, []byte("k"), second, 1))
	require.True(t, hit(t, b, []byte("k"), second, 1))
	require.True(t, hit(t, a, []byte("k"), second, 1))
	require.False(t, hit(t, b, []byte("k"), second, 1))
	require.Len(t, store.directory(t).Tables, 1)
	require.Len(t, store.directory(t).Tables[0].Owners, 2)

	other := configured(store, "c", 3, definition("x", 100, perKey(3, anHour)))
	require.True(t, hit(t, other, []byte("k"), second, 3), "another definition has its own table")
	require.Len(t, store.directory(t).Tables, 2)
	require.False(t, hit(t, a, []byte("k"), second, 1))

	larger := configured(store, "a", 4, definition("x", 101, aligned(3, anHour, 0)))
	require.True(t, hit(t, larger, []byte("k"), second, 3), "another capacity restarts the counter")
}

func TestWindowsChangedByTheirOnlyOwnerKeepWhatRemains(t *testing.T) {
	store := newMemory()
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	key, now := []byte("k"), 100*second
	old := configured(store, "o", 1, definition("x", 100, hour))
	require.True(t, hit(t, old, key, now, 4))

	next := configured(store, "o", 2, definition("x", 100, hour, day))
	require.Equal(t, []uint32{4, 0}, used(t, next, key, now), "the new window starts empty")
	require.True(t, hit(t, next, key, now, 1))
	require.False(t, hit(t, next, key, now, 1))
	require.False(t, hit(t, old, key, now, 1), "the old worker sees what the new one counted")
	require.Equal(t, []uint32{5}, used(t, old, key, now))
	require.Equal(t, []uint32{5, 1}, used(t, next, key, now), "the old worker has dropped nothing")

	require.True(t, hit(t, old, []byte("late"), now, 2))
	require.Equal(t, []uint32{2, 2}, used(t, next, []byte("late"), now), "an old worker's hit counts in every window")

	raised := configured(store, "o", 3, definition("x", 100, aligned(7, anHour, 0), day))
	require.True(t, hit(t, raised, key, now, 2), "a raised limit admits the difference")
	require.False(t, hit(t, raised, key, now, 1))

	only := configured(store, "o", 4, definition("x", 100, day))
	require.Equal(t, []uint32{3}, used(t, only, key, now))
	require.True(t, hit(t, only, key, now, 1))
	again := configured(store, "o", 5, definition("x", 100, hour, day))
	require.Equal(t, []uint32{0, 4}, used(t, again, key, now), "a dropped window comes back empty")
	require.Len(t, store.directory(t).Tables, 1)
}

// TestTooManyTables: as many tables as the directory can count, of as many counters. Another one is refused, and those
// that are registered go on. If some go, there is room again.
func TestTooManyTables(t *testing.T) {
	store := newMemory()
	def := definition("x", 1, aligned(3, anHour, 0))
	counts := configured(store, "o", 1, def)
	require.True(t, hit(t, counts, []byte("k"), second, 1))
	d := store.directory(t)
	for n := len(d.Tables); n < directory.MaxTables; n++ {
		other := definition(fmt.Sprint("of another owner ", n), 1, aligned(3, anHour, 0))
		_, ok := d.Register(directory.Owner{ID: 9, ConfiguredNs: 1}, &other, second)
		require.True(t, ok)
	}
	require.Equal(t, OK, store.Set(directoryKey, d.Append(nil), 0))
	require.Len(t, store.directory(t).Tables, directory.MaxTables)

	more := counts.parent.Table(definition("more", 1, aligned(3, anHour, 0)))
	var e Entry
	require.Equal(t, Failed, more.Read(&e, keyed(more, []byte("k")), second))
	require.Equal(t, Failed, counts.parent.PrepareLooks(second))
	require.Len(t, store.directory(t).Tables, directory.MaxTables, "nothing is written")
	require.True(t, hit(t, counts, []byte("k"), second, 1))
	require.Equal(t, OK, counts.parent.Heartbeat(second))

	d = store.directory(t)
	keeps := func(id CounterID) bool { return id == def.Counter }
	d.LeaveAndSweep(directory.Owner{ID: 9, ConfiguredNs: 1}, keeps, second)
	require.Equal(t, OK, store.Set(directoryKey, d.Append(nil), 0))
	require.True(t, hit(t, more, []byte("k"), second, 1))
}

func TestAVanishedCounterComesBack(t *testing.T) {
	store := newMemory()
	def := definition("x", 100, aligned(5, anHour, 0))
	key, now := []byte("k"), 100*second
	x := configured(store, "o", 1, def)
	require.True(t, hit(t, x, key, now, 4))
	y := configured(store, "o", 2, definition("y", 100, aligned(5, anHour, 0)))
	require.True(t, hit(t, y, key, now, 1))
	require.Len(t, store.directory(t).Tables, 2)

	back := configured(store, "o", 3, def)
	require.Equal(t, []uint32{4}, used(t, back, key, now), "it came back before its windows had ended")
	for _, e := range store.directory(t).Tables {
		require.Equal(t, e.Counter == def.Counter, e.VanishedNs == 0)
	}
}

// A counter that comes back has all that its records still count, also if that is for longer than the longest period.
func TestAVanishedCounterWaitsForWhatItsRecordsCount(t *testing.T) {
	inFlight := limit.Window{Algorithm: limit.Concurrency, Limit: 1, PeriodNs: 8 * second}
	settles := limit.Window{Algorithm: limit.Concurrency, Unlimited: true, PeriodNs: 8 * second}
	owes := aligned(1, second, 0)
	owes.Pays = 1
	shortened := limit.NewBlock(second, false)
	for name, c := range map[string]struct {
		windows []limit.Window
		count   func(table *Table, e *Entry) Status
		afterNs int64 // that it is gone
	}{
		"a bucket that fills slowly": {[]limit.Window{tokenBucket(3600, 1, second)}, commit(3600), 1000 * second},
		"a counter's period before":  {[]limit.Window{slidingCounter(100, anHour)}, commit(100), anHour + anHour/2},
		"a hold before it lapses":    {[]limit.Window{inFlight}, hold(1), 8*second + ms},
		"a hold that has lapsed":     {[]limit.Window{perKey(1, 10*second), settles}, hold(1), 18 * second},
		"a window that owes":         {[]limit.Window{owes, settles}, commit(100), 60 * second},
		"a block of a longer policy": {[]limit.Window{aligned(1, second, 0), shortened}, block(anHour), 60 * second},
	} {
		t.Run(name, func(t *testing.T) {
			store, key := newMemory(), []byte("k")
			now := 1000 * anHour
			x := configured(store, "o", 1, definition("x", 100, c.windows...))
			var e Entry
			require.Equal(t, OK, x.Read(&e, keyed(x, key), now))
			require.Equal(t, OK, c.count(x, &e))

			y := configured(store, "o", 2, definition("y", 100, aligned(5, anHour, 0)))
			require.True(t, hit(t, y, key, now, 1), "x vanishes")
			now += c.afterNs
			store.monotonicNs += c.afterNs
			z := configured(store, "o", 3, definition("z", 100, aligned(5, anHour, 0)))
			require.True(t, hit(t, z, key, now, 1), "a registration sweeps")
			back := configured(store, "o", 4, definition("x", 100, c.windows...))
			require.Equal(t, OK, back.Read(&e, keyed(back, key), now))
			require.NotEqual(t, now, back.Check(&e, c.windows[0].Max()))
		})
	}
}

func commit(units uint32) func(*Table, *Entry) Status {
	return func(table *Table, e *Entry) Status { return table.Commit(e, units, true) }
}

func hold(units uint32) func(*Table, *Entry) Status {
	return func(table *Table, e *Entry) Status {
		_, status := table.Hold(e, units, true)
		return status
	}
}

// block denies a hit while the policy's block is that long.
func block(periodNs int64) func(*Table, *Entry) Status {
	return func(table *Table, e *Entry) Status {
		for column := range e.windows.list {
			if w := &e.windows.list[column]; w.Algorithm == limit.Block {
				defer func(shorter int64) { w.PeriodNs = shorter }(w.PeriodNs)
				w.PeriodNs = periodNs
			}
		}
		return table.Deny(e, 1, true)
	}
}

func TestAStaleWorkerCannotDisturbAReusedNumber(t *testing.T) {
	hour := limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: anHour}
	for name, windows := range map[string][]limit.Window{
		"the same windows": {hour}, "other windows": {hour, perKey(5, 2*anHour)},
	} {
		store := newMemory()
		key, now := []byte("k"), 100*second
		stale := configured(store, "o", 1, definition("x", 4, hour))
		require.True(t, hit(t, stale, key, now, 5), name)
		other := configured(store, "o", 2, definition("y", 4, hour))
		require.True(t, hit(t, other, key, now, 1))
		now += 2 * anHour
		z := configured(store, "o", 3, definition("z", 4, windows...))
		require.Equal(t, OK, z.Read(new(Entry), keyed(z, key), now))
		require.Equal(t, stale.placement.number, z.placement.number, "%s: the number is used again", name)

		require.True(t, hit(t, stale, key, now, 3), "%s: z has not written yet", name)
		require.EqualValues(t, 0, used(t, z, key, now)[0], name)
		require.True(t, hit(t, z, key, now, 4), name)
		require.True(t, hit(t, stale, key, now, 1), name)
		require.NotEqual(t, z.placement.number, stale.placement.number,
			"%s: the stale worker has a table of its own again", name)
		require.EqualValues(t, 4, used(t, z, key, now)[0], name)

		require.Equal(t, OK, z.parent.Heartbeat(now))
		for _, e := range store.directory(t).Tables {
			require.Equal(t, e.Counter == z.def.Counter, len(e.Owners) > 0, "%s: only z is in use", name)
		}
	}
}

func TestAClockSetBackDoesNotFreezeLayouts(t *testing.T) {
	store := newMemory()
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	key, now := []byte("k"), 10*anHour
	ahead := configured(store, "o", now, definition("x", 100, hour))
	require.True(t, hit(t, ahead, key, now, 1))

	now -= anHour
	next := configured(store, "o", now, definition("x", 100, hour, day))
	require.True(t, hit(t, next, key, now, 1))
	require.Equal(t, []page.Column{0, 1}, next.placement.columnOf[:2:2], "the newer configuration has its windows")

	epoch := store.directory(t).Tables[0].Epoch
	require.Equal(t, OK, ahead.parent.Heartbeat(now))
	require.Equal(t, epoch, store.directory(t).Tables[0].Epoch, "the one from before the step does not undo it")
	require.Equal(t, OK, next.parent.Heartbeat(now))
	require.Equal(t, epoch, store.directory(t).Tables[0].Epoch)
}

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
			old.parent.SetSplitOwner(OwnerID("split"))
			require.True(t, hit(t, old, []byte("k"), now, 3))
			next := configured(store, c.owner, 2, c.next)
			if c.counts {
				require.True(t, hit(t, next, []byte("k"), now, 1))
			}
			for range 3 {
				require.Equal(t, OK, next.parent.Heartbeat(now))
				require.Equal(t, OK, old.parent.Heartbeat(now))
				require.Equal(t, c.want, old.parent.HasConflict())
				require.False(t, next.parent.HasConflict())
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
	require.Equal(t, OK, old.parent.Heartbeat(now))
	require.True(t, old.parent.HasConflict())
	require.True(t, hit(t, configured(store, "o", 3, definition("x", 100, hour, day)), []byte("k"), now, 1))
	require.Equal(t, OK, old.parent.Heartbeat(now))
	require.False(t, old.parent.HasConflict())

	require.Equal(t, OK, old.parent.dropOwners([]uint64{OwnerID("o")}, now))
	require.Equal(t, OK, old.parent.Heartbeat(now))
	require.True(t, old.parent.HasConflict())
	require.Equal(t, OK, old.parent.Heartbeat(now))
	require.False(t, old.parent.HasConflict())
}

// When one worker splits, the others with the same conflict follow at their next
// heartbeat, and all of them count together.
func TestWorkersSplitTogether(t *testing.T) {
	for name, sibling := range map[string]Definition{
		"another window":  definition("x", 100, aligned(9, 24*anHour, 0)),
		"another counter": definition("y", 100, aligned(5, anHour, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemory()
			now, key := 100*second, []byte("k")
			def := definition("x", 100, aligned(5, anHour, 0))
			var workers []*Table
			for range 3 {
				w := configured(store, "o", 1, def)
				w.parent.SetSplitOwner(OwnerID("split"))
				require.True(t, hit(t, w, key, now, 1))
				workers = append(workers, w)
			}
			other := configured(store, "o", 2, sibling)
			require.True(t, hit(t, other, key, now, 1))
			heartbeats := func() {
				for _, w := range append([]*Table{other}, workers...) {
					require.Equal(t, OK, w.parent.Heartbeat(now))
				}
			}
			heartbeats()
			require.True(t, workers[0].parent.HasConflict())
			workers[0].parent.Split()
			require.True(t, hit(t, workers[0], key, now, 1))
			heartbeats()
			before := used(t, workers[0], key, now)
			for i, w := range workers {
				require.True(t, w.parent.split.isDone, "worker %d", i)
				require.False(t, w.parent.HasConflict(), "worker %d", i)
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

// The first hits of many tables write the directory only a few times, and those of
// another worker find all tables registered.
func TestFirstHitsOfManyTables(t *testing.T) {
	const many = 1000
	store := newMemory()
	worker := func() []*Table {
		tables := NewTables(store, seeded(1), 1, 1)
		list := make([]*Table, many)
		for n := range list {
			list[n] = tables.Table(definition(fmt.Sprint(n), 100, aligned(1, anHour, 0)))
		}
		return list
	}
	registered, writes := 0, 0
	for n, table := range worker() {
		require.True(t, hit(t, table, []byte("k"), second, 1))
		if now := len(store.directory(t).Tables); now != registered {
			alone := now == registered+1
			ahead := registered >= minAhead && now <= 2*registered+1
			require.Truef(t, alone || ahead, "%d after %d", now, registered)
			registered = now
			writes++
		}
		require.GreaterOrEqual(t, registered, n+1)
	}
	require.Equal(t, many, registered)
	require.Equal(t, 22, writes, "16 one by one, then 33, 67, 135, 271, 543 and the rest")
	written := store.values[string(directoryKey)].cas
	for _, table := range worker() {
		require.False(t, hit(t, table, []byte("k"), second, 1), "what the first worker counted")
	}
	require.Equal(t, written, store.values[string(directoryKey)].cas, "nothing was left to write")
}

// After a split the tables have another owner, and still know how many proxies are alive: each admits its share. A
// worker that splits later does not tell an older number.
func TestASplitKeepsTheNumberOfProxies(t *testing.T) {
	def := definition("counter", 100, aligned(1, anHour, 0))
	split := func(ts *Tables) {
		ts.SetSplitOwner(OwnerID("split"))
		ts.Split()
	}
	store := newMemory()
	one, other := configured(store, "o", 1, def).parent, configured(store, "o", 1, def).parent
	one.SetProxies(3)
	split(one)
	require.EqualValues(t, 3, one.Proxies())
	one.SetProxies(5)
	split(other)
	require.EqualValues(t, 5, other.Proxies())

	alone := configured(newMemory(), "o", 1, def).parent
	split(alone)
	require.Zero(t, alone.Proxies(), "none is known")
}
