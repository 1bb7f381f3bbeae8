package state

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// holding is what a rule that settles has beside its windows.
func holding() limit.Window {
	return limit.Window{Algorithm: limit.Concurrency, PeriodNs: 80 * second, Unlimited: true}
}

// inFlight is the window of a rule that lets three requests be in flight.
func inFlight() limit.Window {
	return limit.Window{Algorithm: limit.Concurrency, Limit: 3, PeriodNs: 10 * second}
}

// desk is a table that holds, with both clocks.
type desk struct {
	*testing.T
	store   *memory
	table   *Table
	entry   Entry
	scratch Scratch
	now     int64
}

func newDesk(t *testing.T, capacity uint32, windows ...limit.Window) *desk {
	d := &desk{T: t, store: newMemory(), now: 1000 * second}
	d.store.monotonicNs = 77 * second
	d.table = configured(d.store, "o", 1, definition("x", capacity, windows...))
	return d
}

// pass lets both clocks run while the process is alive.
func (d *desk) pass(ns int64) {
	for ; ns > 0; ns -= second {
		step := min(ns, second)
		d.now += step
		d.store.monotonicNs += step
		d.table.parent.HoldClock()
	}
}

// read reads the key's usage into the desk's entry.
func (d *desk) read(key string) {
	require.Equal(d, OK, d.table.Read(&d.entry, keyed(d.table, []byte(key)), d.now))
}

// hold holds units if they fit.
func (d *desk) hold(key string, units uint32) (r Hold, ok bool) {
	if d.read(key); d.table.Check(&d.entry, units) != d.entry.Now {
		return Hold{}, false
	}
	r, status := d.table.Hold(&d.entry, units, true)
	require.Equal(d, OK, status)
	return r, true
}

func (d *desk) reset(key string) {
	d.read(key)
	had, status := d.table.Reset(&d.entry, true)
	require.True(d, had)
	require.Equal(d, OK, status)
}

func (d *desk) settle(key string, r Hold, cost uint32) (lapsed bool) {
	lapsed, status := d.table.Settle(&d.scratch, keyed(d.table, []byte(key)).Limits, r, d.now, cost)
	require.Equal(d, OK, status)
	return lapsed
}

// stands returns what the key has used in its first window, and what it holds.
func (d *desk) stands(key string) (used, held uint32) {
	d.read(key)
	return d.entry.Usage(0).Used, d.entry.Held()
}

func (d *desk) requireStands(key string, used, held uint32, message string) {
	d.Helper()
	u, h := d.stands(key)
	require.Equal(d, []uint32{used, held}, []uint32{u, h}, message)
}

// A request that another rule denies is told what its key has left once its own hold is undone.
func TestARefundedHoldIsNotTold(t *testing.T) {
	for name, evict := range map[string]bool{"in its record": false, "in the floor": true} {
		d := newDesk(t, 1, aligned(50, anHour, 0), holding())
		_, ok := d.hold("a", 2)
		require.True(t, ok)
		h, ok := d.hold("a", 3)
		require.True(t, ok)
		require.EqualValues(t, 5, d.entry.Held(), name)
		if evict {
			require.True(t, hit(t, d.table, []byte("b"), d.now, 9), name)
		}
		require.True(t, d.table.RefundHold(&d.entry, keyed(d.table, []byte("a")).Limits, h, d.now), name)
		require.EqualValues(t, 2, d.entry.Held(), name)
		d.requireStands("a", 0, 2, name)
	}
}

// A request that another rule denies tells what its key has left, also if its hold cannot be undone.
func TestAHoldThatIsNotRefundedIsTold(t *testing.T) {
	d := newDesk(t, 1, aligned(50, anHour, 0), holding())
	h, ok := d.hold("a", 3)
	require.True(t, ok)
	d.store.Set(d.pageKey(), []byte("damaged"), 0)
	require.False(t, d.table.RefundHold(&d.entry, keyed(d.table, []byte("a")).Limits, h, d.now))
	require.EqualValues(t, 3, d.entry.Held())
}

// TestLostHoldsAreCharged: units that nobody settles are charged after eight to nine
// eighths of the hold, whoever looks; those that are renewed are not.
func TestLostHoldsAreCharged(t *testing.T) {
	d := newDesk(t, 64, aligned(5, 600*second, 0), holding())
	_, ok := d.hold("a", 2)
	require.True(t, ok)
	alive, ok := d.hold("a", 1)
	require.True(t, ok)
	for range 8 {
		d.pass(10 * second)
		require.True(t, d.table.IsDue(&alive, d.table.parent.HoldClock()))
		found, status := d.table.Renew(&d.scratch, keyed(d.table, []byte("a")).Limits, &alive, d.now)
		require.Equal(t, OK, status)
		require.True(t, found.isHeld())
		require.False(t, d.table.IsDue(&alive, d.table.parent.HoldClock()))
	}
	d.requireStands("a", 0, 3, "after 8 eighths")
	d.pass(10 * second)
	d.requireStands("a", 2, 1, "after 9")
	d.requireStands("a", 2, 1, "to whoever looks again")
	require.False(t, d.settle("a", alive, 1))
	d.requireStands("a", 3, 0, "settled")
	d.pass(600 * second)
	d.requireStands("a", 0, 0, "in another window")
}

// TestHoldsOfBefore: a hold from before its counter's policy settled nothing for a while ends
// no hold of others.
func TestHoldsOfBefore(t *testing.T) {
	d := newDesk(t, 1, aligned(5, 600*second, 0), holding())
	before, ok := d.hold("a", 3)
	require.True(t, ok)
	windows := d.table.def.Windows
	for made, list := range [][]limit.Window{windows[:1], windows} {
		d.table = configured(d.store, "o", 2+int64(made), definition("x", 1, list...))
		require.Equal(t, OK, d.table.Read(&d.entry, keyed(d.table, []byte("b")), d.now))
		require.Equal(t, OK, d.table.Commit(&d.entry, 0, true))
	}
	_, ok = d.hold("b", 3)
	require.True(t, ok)
	_, ok = d.hold("c", 1) // evicts b
	require.True(t, ok)
	require.False(t, d.settle("a", before, 1))
	d.requireStands("b", 1, 3, "what b holds is in the floor, and a's charge")
}

// TestAHoldOfAShortenedLength: it lapses when nine eighths of the new length have begun since, no sooner: until then
// its request pays what it costs.
func TestAHoldOfAShortenedLength(t *testing.T) {
	long, short := holding(), holding()
	long.PeriodNs = 9 * short.PeriodNs
	d := newDesk(t, 1, aligned(100, 24*anHour, 0), long)
	toEighth := func(number uint32, w *limit.Window) {
		for eighthAt(d.table.parent.HoldClock(), w.EighthNs()) != number {
			d.pass(second)
		}
	}
	at := eighthAt(d.table.parent.HoldClock(), long.EighthNs())
	before, ok := d.hold("a", 5)
	require.True(t, ok)
	toEighth(at+1, &long)
	_, ok = d.hold("a", 1)
	require.True(t, ok)
	windows := []limit.Window{d.table.def.Windows[0], short}
	d.table = configured(d.store, "o", 2, definition("x", 1, windows...))
	d.requireStands("a", 0, 6, "held by the new length")
	toEighth(9*(at+1)-1+8, &short)
	require.False(t, d.settle("a", before, 1))
	d.requireStands("a", 1, 1, "settled")
}

// afterAShortenedLength is a page of two slots whose eighths were 30 s long, and are 10 s long now:
//
//	old eighth   new eighth
//	0            2            a holds 5, and b holds 6
//	2            8            y evicts a, and a evicts y: it comes back, uses 3 and holds 7. The 5 are in the floor
//	3            9 to 11      b is renewed. The policy is changed in 9, so b's record is as of 11. c evicts b
//
// What is held as of 11 is in the eighths 3 to 11. So the floor has no place for the eighth 2, but 2 has not lapsed.
func afterAShortenedLength(t *testing.T) (d *desk, ofA, ofB Hold, toNew func(eighth uint32)) {
	long, short := holding(), holding()
	long.PeriodNs = 3 * short.PeriodNs
	d = newDesk(t, 2, aligned(100, 24*anHour, 0), long)
	first := eighthAt(d.table.parent.HoldClock(), long.EighthNs()) + 1
	toEighth := func(number uint32, w *limit.Window) {
		for eighthAt(d.table.parent.HoldClock(), w.EighthNs()) != number {
			d.pass(second)
		}
	}
	hold := func(key string, units uint32) Hold {
		h, ok := d.hold(key, units)
		require.True(t, ok)
		return h
	}
	toEighth(first, &long)
	ofA = hold("a", 5)
	ofB = hold("b", 6)
	toEighth(first+2, &long)
	require.True(t, hit(t, d.table, []byte("y"), d.now, 1))
	require.True(t, hit(t, d.table, []byte("a"), d.now, 3))
	hold("a", 7)
	toEighth(first+3, &long)
	found, status := d.table.Renew(&d.scratch, keyed(d.table, []byte("b")).Limits, &ofB, d.now)
	require.Equal(t, OK, status)
	require.True(t, found.isHeld())

	d.table = configured(d.store, "o", 2, definition("x", 2, d.table.def.Windows[0], short))
	d.requireStands("a", 3, 7+5, "its own, and those in the floor")
	d.requireStands("b", 0, 6, "its own")
	require.True(t, hit(t, d.table, []byte("c"), d.now, 1))
	d.requireStands("a", 3, 7+5+6, "b's are in the floor too")
	return d, ofA, ofB, func(eighth uint32) { toEighth(3*first+eighth, &short) }
}

// TestAnEvictionSparesNoSharer: what lapses in the floor is charged to a record whose key may have held it, also if
// another record was ahead, because the hold's length was shortened, and was evicted.
func TestAnEvictionSparesNoSharer(t *testing.T) {
	d, _, _, toNew := afterAShortenedLength(t)
	toNew(12)
	d.requireStands("a", 3+5, 7+6, "the 5 have lapsed")
	toNew(20)
	d.requireStands("a", 3+5+7+6, 0, "all have")
}

// TestAnEvictionEndsNoHold: a hold in the floor ends none of another key, also if a record was ahead and was evicted.
func TestAnEvictionEndsNoHold(t *testing.T) {
	d, ofA, ofB, _ := afterAShortenedLength(t)
	require.False(t, d.settle("a", ofA, 1))
	d.requireStands("a", 3+1, 7+6, "b's are still held")
	require.False(t, d.settle("b", ofB, 1))
	d.requireStands("a", 3+1, 7, "its own")
}

// TestHoldingOfAllVMs: the sum is of the VMs that give signs of life.
func TestHoldingOfAllVMs(t *testing.T) {
	d := newDesk(t, 64, inFlight())
	share := func(vm uint64, units int64) int64 {
		all, status := d.table.parent.ShareStreamTotal(7, vm, StreamTotal{units, 1})
		require.Equal(t, OK, status)
		return all.Units
	}
	require.EqualValues(t, 3, share(1, 3))
	require.EqualValues(t, 5, share(2, 2))
	require.EqualValues(t, 4, share(1, 2))
	for range 6 { // the second has trapped
		d.pass(second)
		share(1, 2)
	}
	require.EqualValues(t, 2, share(1, 2))
	all, _ := d.table.parent.ShareStreamTotal(7, 1, StreamTotal{})
	require.Zero(t, all)
	all, _ = d.table.parent.ShareStreamTotal(8, 1, StreamTotal{1, 1})
	require.Equal(t, StreamTotal{1, 1}, all, "of another rule")
}

// TestHoldsDoNotAllocate: neither does a stream, from its hold over a renewal to its answer,
// nor one whose hold has lapsed before.
func TestHoldsDoNotAllocate(t *testing.T) {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: 8 * second, Unlimited: true}
	const units = 1 << 31
	sliding, grid := elastic(anHour), jittered(anHour, 50)
	sliding.Limit, grid.Limit = units, units
	slots := hold
	slots.Limit, slots.Unlimited = units, false
	for name, windows := range map[string][]limit.Window{
		"in flight": {slots}, "an aligned window": {aligned(units, anHour, 0), hold},
		"all": { // of the log, one unit leaves for each that comes
			aligned(units, anHour, 0), grid, perKey(units, 2*anHour), sliding, slidingLog(limit.MaxLog, 100*ms),
			slidingCounter(units, anHour), tokenBucket(units, 1, anHour), hold,
		},
	} {
		store := &view{memory: newMemory()}
		table := configured(store, "o", 1, definition("x", 2, windows...))
		keys := []Key{keyed(table, []byte("a")), keyed(table, []byte("b")), keyed(table, []byte("c"))}
		e, scratch := new(Entry), new(Scratch)
		now := 100 * second
		stream := func() { // an eighth
			now += second
			store.mono += second
			for i, key := range keys {
				require.Equal(t, OK, table.Read(e, key, now))
				waits := table.Check(e, 1) != e.Now // an int64 in an interface is allocated
				require.False(t, waits)
				r, status := table.Hold(e, 1, true)
				require.Equal(t, OK, status)
				if i == 0 {
					continue // lost
				}
				_, status = table.Renew(scratch, key.Limits, &r, now)
				require.Equal(t, OK, status)
				_, status = table.Settle(scratch, key.Limits, r, now, 2)
				require.Equal(t, OK, status)
			}
		}
		for range 100 {
			stream()
		}
		require.Zero(t, testing.AllocsPerRun(200, stream), name)
	}
}

// stepStore stops its worker before each read and write.
type stepStore struct {
	Store
	stop func()
}

func (s *stepStore) Get(key []byte) ([]byte, uint32, Status) {
	s.stop()
	return s.Store.Get(key)
}

func (s *stepStore) Set(key, value []byte, cas uint32) Status {
	s.stop()
	return s.Store.Set(key, value, cas)
}

// interleavings runs two workers in every possible order of their reads and
// writes, each time from a fresh start, and returns the number of orders.
func interleavings(start func() (store Store, workers [2]func(Store), judge func())) int {
	var order []int // by step: index of the next worker among those still running
	for n := 1; ; n++ {
		store, workers, judge := start()
		type running struct {
			next func() (struct{}, bool)
			stop func()
		}
		var live []running
		for _, work := range workers {
			next, stop := iter.Pull(func(yield func(struct{}) bool) {
				work(&stepStore{store, func() { yield(struct{}{}) }})
			})
			live = append(live, running{next, stop})
			next() // up to its first access
		}
		var options []int
		for at := 0; len(live) > 0; at++ {
			if at == len(order) {
				order = append(order, 0)
			}
			options = append(options, len(live))
			if _, more := live[order[at]].next(); !more {
				live = append(live[:order[at]:order[at]], live[order[at]+1:]...)
			}
		}
		judge()
		order = order[:len(options)]
		for len(order) > 0 && order[len(order)-1] == options[len(order)-1]-1 {
			order = order[:len(order)-1]
		}
		if len(order) == 0 {
			return n
		}
		order[len(order)-1]++
	}
}

// TestEveryOrderOfTwoHolds: there is room for one more unit, and two workers hold, settle or
// renew at once. Each unit is held or charged once, whoever comes first.
func TestEveryOrderOfTwoHolds(t *testing.T) {
	type work func(d *desk, r *Hold) (used, held int)
	hold := func(d *desk, _ *Hold) (used, held int) {
		for {
			if d.read("k"); d.table.Check(&d.entry, 1) != d.entry.Now {
				return 0, 0
			}
			if _, status := d.table.Hold(&d.entry, 1, true); status == OK {
				return 0, 1
			}
		}
	}
	settle := func(cost uint32) work {
		return func(d *desk, r *Hold) (used, held int) {
			require.False(t, d.settle("k", *r, cost))
			return int(cost), -1
		}
	}
	renew := func(d *desk, r *Hold) (used, held int) {
		found, status := d.table.Renew(&d.scratch, keyed(d.table, []byte("k")).Limits, r, d.now)
		require.Equal(t, OK, status)
		require.True(t, found.isHeld())
		return 0, 0
	}
	for name, both := range map[string][2]work{
		"two hits":                {hold, hold},
		"a hit and an answer":     {hold, settle(0)},
		"a hit and a dear answer": {hold, settle(2)},
		"two answers":             {settle(1), settle(0)},
		"an answer and a renewal": {settle(1), renew},
		"two renewals":            {renew, renew},
	} {
		n := interleavings(func() (Store, [2]func(Store), func()) {
			d := newDesk(t, 4, aligned(3, anHour, 0), holding())
			var streams [2]Hold
			for i := range streams {
				streams[i], _ = d.hold("k", 1)
			}
			d.store.monotonicNs += second
			used, held := 0, 2
			worker := func(i int) func(Store) {
				return func(s Store) {
					u, h := both[i](&desk{T: t, table: configured(s, "o", 1, d.table.def), now: d.now}, &streams[i])
					used, held = used+u, held+h
				}
			}
			return d.store, [2]func(Store){worker(0), worker(1)}, func() {
				d.requireStands("k", uint32(used), uint32(held), name)
				require.True(t, used+held <= 3 || name == "a hit and a dear answer", "%s: %d, %d", name, used, held)
			}
		})
		t.Logf("%s: %d orders", name, n)
	}
}

// TestASplitEndsNoHold: siblings that define a counter alike share its table, and with it what its streams hold. So
// these are renewed also if no hit opens the table again.
func TestASplitEndsNoHold(t *testing.T) {
	d := newDesk(t, 64, inFlight())
	d.table.parent.SetSplitOwner(OwnerID("split"))
	h, ok := d.hold("a", 3)
	require.True(t, ok)
	d.table.parent.Split()
	sibling := configured(d.store, "o", 2, d.table.def)
	e, key := new(Entry), keyed(d.table, []byte("a"))
	for range 20 {
		d.pass(second)
		require.Equal(t, OK, d.table.parent.Heartbeat(d.now))
		if d.table.IsDue(&h, d.table.parent.HoldClock()) {
			found, status := d.table.Renew(&d.scratch, key.Limits, &h, d.now)
			require.Equal(t, OK, status)
			require.Equal(t, HeldInRecord, found)
		}
		require.Equal(t, OK, sibling.Read(e, key, d.now))
		require.EqualValues(t, 3, e.Held())
	}
}
