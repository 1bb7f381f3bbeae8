package state

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/steptest"
)

// Reading and denying a key in a page that does not exist yet does not create the
// page, and the empty page that stands for it is never written.
func TestAMissingPageIsNotMade(t *testing.T) {
	store := &view{memory: newMemory()}
	table := configured(store, "o", 1, definition("x", 1<<20, aligned(5, second, 0), perKey(7, 9*second)))
	key := keyed(table, []byte("k"))
	e := new(Entry)
	require.Equal(t, OK, table.Read(e, key, second))
	values := len(store.values)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if table.Read(e, key, second) != OK || table.Check(e, 9) == e.Now {
			t.Error("not denied")
		}
	}))
	require.Len(t, store.values, values, "nothing is written")

	require.Equal(t, OK, table.Commit(e, 2, true))
	require.True(t, hit(t, table, []byte("other"), second, 3), "in another page")
	require.Equal(t, []uint32{2, 2}, used(t, table, []byte("k"), second))
	require.Equal(t, []uint32{3, 3}, used(t, table, []byte("other"), second))
	require.Equal(t, []uint32{0, 0}, used(t, table, []byte("third"), second))
}

const raceWorkers = 8

// inParallel runs do once for each of so many workers, all at a time.
func inParallel(workers int, do func(worker int)) {
	var wait sync.WaitGroup
	for n := range workers {
		wait.Go(func() { do(n) })
	}
	wait.Wait()
}

// race runs do in each of raceWorkers workers, which have their own tables over one store.
func race(store Store, do func(worker int, tables *Tables)) {
	inParallel(raceWorkers, func(n int) { do(n, NewTables(store, seeded(uint64(n)), 1, 1)) })
}

func TestAHotKeyAdmitsExactlyItsLimit(t *testing.T) {
	for _, def := range []Definition{
		definition("x", 100, aligned(1000, anHour, 0)),
		definition("x", 100, perKey(1000, anHour), aligned(1500, 2*anHour, 0)),
		definition("x", 100,
			slidingLog(limit.MaxLog, anHour), slidingCounter(1000, anHour), tokenBucket(1000, 1, anHour)),
	} {
		lowest := 1000
		for _, w := range def.Windows {
			lowest = min(lowest, int(w.Max()))
		}
		var admitted atomic.Int64
		store := newMemory()
		race(store, func(worker int, tables *Tables) {
			table := tables.Table(def)
			for range 400 {
				if hit(t, table, []byte("hot"), 100*second+int64(worker), 1) {
					admitted.Add(1)
				}
			}
		})
		require.EqualValues(t, lowest, admitted.Load())
		require.EqualValues(t, lowest, used(t, configured(store, "o", 1, def), []byte("hot"), 101*second)[0])
	}
}

// TestTheClockSteps: rule and floors, by the judge of all limiters whose clock steps.
func TestTheClockSteps(t *testing.T) {
	steptest.Judge(t, 1500, func(windows []limit.Window, capacity uint32, clock *steptest.Clock) steptest.Limiter {
		store := newMemory()
		store.clock = func() int64 { return clock.Ns }
		table := configured(store, "o", 1, definition("x", capacity, windows...))
		var e Entry
		var scratch Scratch
		hits := 0
		return steptest.Limiter{
			OfKey: func(w limit.Window, key int) limit.Window {
				return w.Shifted(w.KeyShift(shiftHash(numbered(key))))
			},
			Hit: func(key int, cost uint32) bool {
				if hits++; capacity < 8 && hits%9 == 0 { // keys have to go: cleaning gives nobody more
					_, status := table.Clean(&scratch, windows, clock.Ns)
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

// TestAnEntryTellsByTheWindowsItWasReadBy: the same as before after a key of another page was read and has met newer
// windows. A change has to read it again, although nobody has written its page, or the newer windows would miss it.
func TestAnEntryTellsByTheWindowsItWasReadBy(t *testing.T) {
	store := newMemory()
	hour := aligned(9, anHour, 0)
	older := configured(store, "o", 1, definition("x", 1<<20, hour))
	key, other := keyed(older, []byte("k")), keyed(older, []byte("l"))
	var e, later Entry
	require.Equal(t, OK, older.Read(&e, key, second))
	require.Equal(t, OK, older.Commit(&e, 3, true))
	require.Equal(t, OK, older.Read(&e, key, second))

	// The second comes before the hour.
	newer := configured(store, "o", 2, definition("x", 1<<20, aligned(9, second, 0), hour))
	require.True(t, hit(t, newer, []byte("l"), second, 1))
	require.Equal(t, OK, older.Read(&later, other, second))
	require.NotEqual(t, e.pageKey, later.pageKey)
	require.EqualValues(t, 1, later.Usage(0).Used)
	require.EqualValues(t, 3, e.Usage(0).Used)
	require.Equal(t, e.Now, older.Check(&e, 6))
	require.NotEqual(t, e.Now, older.Check(&e, 7))

	require.Equal(t, Mismatch, older.Commit(&e, 1, true))
	require.Equal(t, OK, older.Reread(&e, key.Limits, second))
	require.Equal(t, OK, older.Commit(&e, 1, true))
	require.Equal(t, []uint32{1, 4}, used(t, newer, []byte("k"), second))
}

// TestARefundGoesByTheLimitsItGets: not by those of the read before it, whose memory the caller has used again.
func TestARefundGoesByTheLimitsItGets(t *testing.T) {
	table := configured(newMemory(), "o", 1, definition("x", 4, aligned(9, anHour, 0)))
	key := keyed(table, []byte("k"))
	limits := key.Limits
	key.Windows = slices.Clone(key.Windows)
	require.True(t, hit(t, table, key.Bytes, second, 2))
	var e Entry
	require.Equal(t, OK, table.Read(&e, key, 2*second))
	require.Equal(t, OK, table.Commit(&e, 3, true))
	key.Windows[0] = aligned(9, anHour, 3*second) // by this one, all that the key has used has ended
	require.True(t, table.Refund(&e, limits, 4*second, 3))
	require.Equal(t, []uint32{2}, used(t, table, key.Bytes, 4*second))
}

// TestATableThatCannotBeOpened: each call that has to open it fails, and none expects a placement.
func TestATableThatCannotBeOpened(t *testing.T) {
	store := newMemory()
	require.Equal(t, OK, store.Set(directoryKey, []byte("damaged"), 0))
	table := configured(store, "o", 1, definition("x", 4, aligned(9, anHour, 0), holding()))
	key, h := keyed(table, []byte("k")), Hold{Units: 1, epoch: 1}
	var e Entry
	var scratch Scratch
	require.Equal(t, Failed, table.Read(&e, key, second))
	require.Equal(t, Failed, table.Reread(&e, key.Limits, second))
	require.Equal(t, Failed, table.Look(&e, key, second))
	require.False(t, table.IsDue(&h, table.parent.HoldClock()))
	require.False(t, table.RefundHold(&e, key.Limits, h, second))
	_, status := table.Renew(&scratch, key.Limits, &h, second)
	require.Equal(t, Failed, status)
	_, status = table.Settle(&scratch, key.Limits, h, second, 1)
	require.Equal(t, Failed, status)
	_, status = table.Clean(&scratch, key.OfRule, second)
	require.Equal(t, Failed, status)
	var survey Survey
	_, done, status := survey.Step(table, &scratch, key.OfRule)
	require.False(t, done)
	require.Equal(t, OK, status)
	stats, status := table.Stats(&scratch, key.OfRule, second)
	require.Equal(t, Failed, status)
	require.Zero(t, stats)
}

// pagesFail is a store that gives some more pages, and then fails to.
type pagesFail struct {
	*memory
	more int
}

func (s *pagesFail) Get(key []byte) ([]byte, uint32, Status) {
	if len(key) == len(loadedPage{}.pageKey) {
		s.more--
		if s.more < 0 {
			return nil, 0, Failed
		}
	}
	return s.memory.Get(key)
}

// TestAnEntryTellsTheSameAfterARefundThatFailed: what was counted and held before, also if the refund has met newer
// windows, or the store has failed after that.
func TestAnEntryTellsTheSameAfterARefundThatFailed(t *testing.T) {
	hour := aligned(9, anHour, 0)
	for name, c := range map[string]struct {
		windows []limit.Window
		pages   int
	}{
		"newer windows":                          {[]limit.Window{hour}, 99},
		"newer windows, and the store fails":     {[]limit.Window{hour}, 1},
		"newer windows of holds, and it fails":   {[]limit.Window{hour, holding()}, 1},
		"the store fails at once":                {[]limit.Window{hour}, 0},
		"the store fails at once, with any hold": {[]limit.Window{hour, holding()}, 0},
	} {
		store := &pagesFail{newMemory(), 99}
		older := configured(store, "o", 1, definition("x", 4, c.windows...))
		newer := configured(store, "o", 2, definition("x", 4, append([]limit.Window{aligned(9, second, 0)}, c.windows...)...))
		key := keyed(older, []byte("k"))
		require.True(t, hit(t, older, key.Bytes, second, 2), name)
		var e Entry
		require.Equal(t, OK, older.Read(&e, key, second), name)
		h, status := older.Hold(&e, 3, true)
		require.Equal(t, OK, status, name)
		used, held := e.Usage(0).Used, e.Held()
		require.True(t, hit(t, newer, key.Bytes, second, 1), name)
		store.more = c.pages
		if h.InTable() {
			require.False(t, older.RefundHold(&e, key.Limits, h, second), name)
		} else {
			require.False(t, older.Refund(&e, key.Limits, second, 3), name)
		}
		require.Equal(t, used, e.Usage(0).Used, name)
		require.Equal(t, held, e.Held(), name)
		require.Equal(t, e.Now, older.Check(&e, 9-used-held), name)
		require.NotEqual(t, e.Now, older.Check(&e, 10-used-held), name)
	}
}

// TestNothingIsWrittenAfterAReadThatFailed: the entry still has the page of the key before, which would come into the
// place of this key's.
func TestNothingIsWrittenAfterAReadThatFailed(t *testing.T) {
	store := &pagesFail{newMemory(), 99}
	table := configured(store, "o", 1, definition("x", 1<<20, aligned(9, anHour, 0)))
	var e Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("k")), second))
	writes := store.cas
	store.more = 0
	require.Equal(t, Failed, table.Read(&e, keyed(table, []byte("l")), second))
	require.Equal(t, ReadOnly, table.Commit(&e, 1, true))
	require.Equal(t, writes, store.cas)

	store.more = 1
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("l")), second))
	require.Equal(t, OK, table.Commit(&e, 1, true))
}

// TestNothingIsWrittenIfATableCannotBeOpenedAgain: after a Split, the entry has the page of the key before, too.
func TestNothingIsWrittenIfATableCannotBeOpenedAgain(t *testing.T) {
	store := newMemory()
	tables := NewTables(store, seeded(1), 1, 1)
	table := tables.Table(definition("x", 1<<20, aligned(9, anHour, 0)))
	leases := tables.LeaseTable(NewCounterID("test", "leases", "", 1<<20), 1, 1, 1<<20)
	var read, reread, looked Entry
	var lease LeaseEntry
	for _, e := range []*Entry{&read, &reread, &looked} {
		require.Equal(t, OK, table.Read(e, keyed(table, []byte("k")), second))
	}
	require.Equal(t, OK, leases.Read(&lease, []byte("k"), second, second))
	require.Equal(t, OK, store.Set(directoryKey, []byte("damaged"), 0))
	tables.SetSplitOwner(2)
	tables.Split()

	other := keyed(table, []byte("l"))
	writes := store.cas
	require.Equal(t, Failed, table.Read(&read, other, second))
	require.Equal(t, ReadOnly, table.Commit(&read, 1, true))
	require.Equal(t, Failed, table.Reread(&reread, other.Limits, second))
	require.Equal(t, ReadOnly, table.Commit(&reread, 1, true))
	require.Equal(t, Failed, table.Look(&looked, other, second))
	require.Equal(t, ReadOnly, table.Commit(&looked, 1, true))
	require.Equal(t, Failed, leases.Read(&lease, []byte("l"), second, second))
	require.Equal(t, ReadOnly, leases.Write(&lease))
	require.Equal(t, writes, store.cas)
}

// TestNothingIsWrittenAfterARefund: whether it has given the units back or not, the entry's usage may be older than
// the page that it has loaded.
func TestNothingIsWrittenAfterARefund(t *testing.T) {
	for _, lastSet := range []uint32{5, 0} { // units that somebody else sets after the hit
		d := newDesk(t, 1, aligned(9, anHour, 0))
		key := keyed(d.table, []byte("k"))
		require.Equal(t, OK, d.table.Read(&d.entry, key, d.now))
		require.Equal(t, OK, d.table.Commit(&d.entry, 3, true))
		if lastSet > 0 {
			var e Entry
			require.Equal(t, OK, d.table.Read(&e, key, d.now))
			require.Equal(t, OK, d.table.Set(&e, AllWindows, lastSet, true))
		}
		require.Equal(t, lastSet == 0, d.table.Refund(&d.entry, key.Limits, d.now, 3))
		require.Equal(t, ReadOnly, d.table.Commit(&d.entry, 1, true))
		require.Equal(t, []uint32{lastSet}, used(t, d.table, key.Bytes, d.now))
	}
	d := newDesk(t, 1, aligned(9, anHour, 0), holding())
	h, ok := d.hold("k", 3)
	require.True(t, ok)
	require.True(t, d.table.RefundHold(&d.entry, keyed(d.table, []byte("k")).Limits, h, d.now))
	require.Equal(t, ReadOnly, d.table.Commit(&d.entry, 1, true))
}
