package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const leaseNow int64 = 5 * second

func leasesOf(store Store, windows int, capacity uint32) *Leases {
	return NewTables(store, seeded(1), 1, 1).Leases(CounterID{1}, 7, windows, capacity)
}

func readLease(t *testing.T, l *Leases, key string, nowNs int64) *LeaseEntry {
	t.Helper()
	e := &LeaseEntry{}
	require.Equal(t, OK, l.Read(e, []byte(key), 100*second, nowNs))
	return e
}

// held is the lease, without memory for standings.
func held(e *LeaseEntry) Lease {
	l := e.Lease
	if len(l.Standings) == 0 {
		l.Standings = nil
	}
	return l
}

func TestALeaseIsKept(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 2, 1000)
	e := readLease(t, l, "k", leaseNow)
	require.Empty(t, held(e))
	require.Zero(t, e.WrittenNs)

	want := Lease{
		Grants: [MaxLeaseGrants]GrantLeft{{GrantID{3, 9}, 7, leaseNow + second}, {GrantID{4, 10}, 8, leaseNow + 2*second}},
		denial: Denial{UntilNs: 11, PassNs: -1, cost: 13}, SilentUntilNs: 16,
		Uncharged: Uncharged{Units: 18, askedUntilNs: 15}, Rate: Rate{17, 19, 21},
		Standings: []LeaseStanding{{Used: 1, ResetNs: 2}, {Used: 3, ResetNs: 4}},
	}
	e.Lease = want
	require.Equal(t, OK, l.Write(e))

	other := leasesOf(store, 2, 1000) // another worker
	found := readLease(t, other, "k", leaseNow+5)
	require.Equal(t, want, found.Lease)
	require.Equal(t, leaseNow, found.WrittenNs)
	require.Empty(t, held(readLease(t, other, "l", leaseNow)))

	found.Spend(leaseNow, 1)
	require.Equal(t, OK, other.Write(found))
	require.Equal(t, Mismatch, l.Write(e), "the other worker wrote first")
	require.Equal(t, OK, l.Reread(e, 100*second, leaseNow))
	require.EqualValues(t, 14, e.Left(leaseNow))

	require.Empty(t, held(readLease(t, l, "k", leaseNow-20*second)),
		"a record of another epoch of the clock holds nothing")
}

func TestAFullPageDropsTheSmallestLease(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, units := range []uint32{5, 3, 8, 9} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow)
		e.Grants[0] = GrantLeft{GrantID{1, 1}, units, leaseNow + second}
		require.Equal(t, OK, l.Write(e))
	}
	e := readLease(t, l, "new", leaseNow)
	e.Grants[0] = GrantLeft{GrantID{1, 2}, 1, leaseNow + second}
	require.Equal(t, OK, l.Write(e))
	require.EqualValues(t, 3, e.Replaced)
	require.Zero(t, readLease(t, l, "1", leaseNow).Left(leaseNow))

	e = readLease(t, l, "later", leaseNow+second)
	e.Grants[0] = GrantLeft{GrantID{1, 3}, 2, leaseNow + 2*second}
	require.Equal(t, OK, l.Write(e))
	require.Zero(t, e.Replaced, "leases that have ended hold nothing")
}

func TestAFullPageDropsTheOldestOfEqualLeases(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, written := range []int64{7, 5, 6, 8} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow+written)
		e.Rate.Now = 1
		require.Equal(t, OK, l.Write(e))
	}
	e := readLease(t, l, "new", leaseNow+9)
	require.Equal(t, OK, l.Write(e))
	for i, kept := range []bool{true, false, true, true} {
		require.Equal(t, kept, readLease(t, l, fmt.Sprint(i), leaseNow+9).WrittenNs != 0, i)
	}
}

func TestLeasesOutliveMoreWindows(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 1, 100)
	e := readLease(t, l, "k", leaseNow)
	e.Grants[0], e.Standings = GrantLeft{GrantID{1, 1}, 5, leaseNow + second}, []LeaseStanding{{Used: 1, ResetNs: 2}}
	require.Equal(t, OK, l.Write(e))

	more := NewTables(store, seeded(1), 1, 2).Leases(CounterID{1}, 7, 3, 100)
	found := readLease(t, more, "k", leaseNow)
	require.EqualValues(t, 5, found.Left(leaseNow))
	require.Equal(t, []LeaseStanding{{Used: 1, ResetNs: 2}, {}, {}}, found.Standings)
}

// Neither another key nor other windows find the units of a record that has their hash.
func TestUnitsOfAnotherKeyAreNotSpent(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 1, 100)
	e := readLease(t, l, "k", leaseNow)
	e.Grants[0] = GrantLeft{GrantID{1, 1}, 5, leaseNow + second}
	require.Equal(t, OK, l.Write(e))

	hourly := NewTables(store, seeded(1), 1, 2).Leases(CounterID{1}, 8, 1, 100)
	require.Zero(t, readLease(t, hourly, "k", leaseNow).Left(leaseNow))

	sameHash := LeaseKey{e.key.hash, e.key.identity ^ 1}
	other := &LeaseEntry{}
	require.Equal(t, OK, l.ReadHashed(other, sameHash, 100*second, leaseNow))
	require.Zero(t, other.Left(leaseNow))
	require.Zero(t, other.WrittenNs)
	other.Grants[0] = GrantLeft{GrantID{1, 2}, 3, leaseNow + second}
	require.Equal(t, OK, l.Write(other))
	require.EqualValues(t, 5, other.Replaced, "both have one record")
	require.Zero(t, readLease(t, l, "k", leaseNow).Left(leaseNow))
	require.Equal(t, OK, l.ReadHashed(other, sameHash, 100*second, leaseNow))
	require.EqualValues(t, 3, other.Left(leaseNow))
}

func TestLeaseRate(t *testing.T) {
	const period = 100
	var l Lease
	l.Rate.Spend(1000, period, 10)
	require.EqualValues(t, 10, l.Rate.Over(1000, period))
	require.EqualValues(t, 10, l.Rate.Over(1099, period))
	require.EqualValues(t, 5, l.Rate.Over(1150, period))
	l.Rate.Spend(1150, period, 4)
	require.EqualValues(t, 4+5, l.Rate.Over(1150, period))
	require.EqualValues(t, 0, l.Rate.Over(1300, period))
	l.Rate.Spend(5000, period, 1<<32-1)
	l.Rate.Spend(5001, period, 1)
	require.Equal(t, uint32(1<<32-1), l.Rate.Over(5001, period), "saturates")
}

// Units of several grants are spent in the order of their ends, and none after its
// end.
func TestUnitsOfSeveralGrants(t *testing.T) {
	var l Lease
	for i, end := range []int64{30, 10, 20} {
		_, ok := l.put(0, GrantLeft{GrantID: GrantID{uint32(i), 1}, Units: 5, EndNs: end})
		require.True(t, ok)
	}
	require.EqualValues(t, 15, l.Left(9))
	require.EqualValues(t, 10, l.Left(10))
	require.EqualValues(t, 2, l.Spend(10, 3).Stream)
	require.EqualValues(t, 2, l.Spend(10, 3).Stream, "the others end later")
	require.Equal(t, uint32(4), l.Left(10))
	require.Equal(t, uint32(5), l.Grants[1].Units, "what has ended waits for its worker")

	_, ok := l.put(10, GrantLeft{GrantID: GrantID{9, 1}, Units: 5, EndNs: 40})
	require.True(t, ok)
	l.Grants[2].Units, l.Grants[3].Units = 1, 1
	_, ok = l.put(10, GrantLeft{GrantID: GrantID{8, 1}, Units: 5, EndNs: 40})
	require.False(t, ok, "no room")
	lost, ok := l.put(11+strandedNs, GrantLeft{GrantID: GrantID{8, 1}, Units: 5, EndNs: 40 + strandedNs})
	require.True(t, ok)
	require.EqualValues(t, 5, lost, "its worker has not come for it")
}

// A denial denies the smallest cost of those that are not over, and a block each cost.
func TestWhatALeaseDenies(t *testing.T) {
	lasting := func(untilNs int64) Denial { return Denial{UntilNs: untilNs, PassNs: untilNs + 5} }
	forEver := Denial{UntilNs: 20, PassNs: limit.Never}
	for _, tc := range []struct {
		name    string
		do      func(*Lease)
		denies  []uint32
		spares  []uint32
		blocks  bool
		waitsNs int64
	}{
		{"nothing", func(*Lease) {}, nil, []uint32{0, 1}, false, -10},
		{"a cost", func(l *Lease) { l.Deny(3, lasting(20), 10) }, []uint32{3, 4}, []uint32{0, 2}, false, 15},
		{"a cost of 0", func(l *Lease) { l.Deny(0, lasting(20), 10) }, []uint32{1}, []uint32{0}, false, 15},
		{"a block", func(l *Lease) { l.Block(forEver, 10) }, []uint32{0, 1}, nil, true, limit.Never},
		{"a block and then a cost", func(l *Lease) {
			l.Block(lasting(11), 10)
			l.Deny(3, lasting(30), 10)
		}, []uint32{0, 1}, nil, true, 25},
		{"a cost after one that is over", func(l *Lease) {
			l.Deny(1, lasting(10), 5)
			l.Deny(3, lasting(30), 10)
		}, []uint32{3}, []uint32{2}, false, 25},
		{"what is over", func(l *Lease) { l.Deny(3, lasting(10), 5) }, nil, []uint32{3}, false, 5},
		{"what can be spent", func(l *Lease) {
			l.Deny(3, lasting(20), 10)
			l.Allow(3)
		}, nil, []uint32{3}, false, 15},
		{"more than can be spent", func(l *Lease) {
			l.Deny(3, lasting(20), 10)
			l.Allow(2)
		}, []uint32{3}, []uint32{2}, false, 15},
	} {
		var l Lease
		tc.do(&l)
		for _, cost := range tc.denies {
			require.True(t, l.Denies(cost, 10), "%s: %d", tc.name, cost)
		}
		for _, cost := range tc.spares {
			require.False(t, l.Denies(cost, 10), "%s: %d", tc.name, cost)
		}
		require.Equal(t, tc.blocks, l.Blocks(10), tc.name)
		require.Equal(t, tc.waitsNs, l.WaitNs(10), tc.name)
	}
}

// One ask at a time tells the service what it has not charged, until it has.
func TestUnchargedUnitsAreTold(t *testing.T) {
	var u Uncharged
	u.Add(5)
	require.False(t, u.IsAsked(10))
	require.EqualValues(t, 5, u.Ask(20))
	require.True(t, u.IsAsked(19))
	require.False(t, u.IsAsked(20), "the answer is late")
	u.Add(2)
	u.Answer(5, true)
	require.EqualValues(t, 2, u.Units)
	require.True(t, u.IsAsked(19), "another ask may be telling the 2")
	require.EqualValues(t, 2, u.Ask(30))
	u.Answer(2, false)
	require.EqualValues(t, 2, u.Units, "the service has failed")
	require.False(t, u.IsAsked(29))
	u.Answer(7, true)
	require.Equal(t, Uncharged{}, u)
	u.Add(1<<32 - 1)
	u.Add(1)
	require.Equal(t, uint32(1<<32-1), u.Units, "saturates")
}

// TestCleanKeepsLeases: what a key holds is there after it, and is spent once.
func TestCleanKeepsLeases(t *testing.T) {
	m := newMemory()
	l := leasesOf(m, 1, 100)
	later := leaseNow + second
	of := func(g GrantLeft) [MaxLeaseGrants]GrantLeft { return [MaxLeaseGrants]GrantLeft{1: g} }
	records := map[string]struct {
		Lease

		keep bool
	}{
		"live":         {Lease{Grants: of(GrantLeft{GrantID{1, 1}, 5, later})}, true},
		"to return":    {Lease{Grants: of(GrantLeft{GrantID{1, 1}, 5, leaseNow - second})}, true},
		"stranded":     {Lease{Grants: of(GrantLeft{GrantID{1, 1}, 5, leaseNow - 3*second})}, false},
		"spent":        {Lease{Grants: of(GrantLeft{GrantID{1, 1}, 0, later}), Rate: Rate{FromNs: leaseNow, Now: 5}}, false},
		"denied":       {Lease{denial: Denial{UntilNs: later}}, true},
		"denied once":  {Lease{denial: Denial{UntilNs: leaseNow}}, false},
		"asked":        {Lease{Uncharged: Uncharged{askedUntilNs: later}}, true},
		"unreachable":  {Lease{SilentUntilNs: later}, true},
		"not told yet": {Lease{Uncharged: Uncharged{Units: 1}}, true},
	}
	kept := uint64(0)
	for name, r := range records {
		e := readLease(t, l, name, leaseNow)
		e.Lease = r.Lease
		require.Equal(t, OK, l.Write(e))
		if r.keep {
			kept++
		}
	}
	var scratch Scratch
	table := l.Table()
	m.monotonicNs = leaseNow
	stats, status := table.Stats(&scratch, table.Windows(), 100*second)
	require.Equal(t, OK, status)
	require.Equal(t, kept, stats.Keys)
	require.Positive(t, stats.Pages)
	require.Positive(t, stats.Bytes)
	require.GreaterOrEqual(t, stats.Slots, uint64(100))

	freed, status := table.Clean(&scratch, table.Windows(), 100*second)
	require.Equal(t, OK, status)
	require.Equal(t, uint64(len(records))-kept, freed)
	for name, r := range records {
		found := readLease(t, l, name, leaseNow)
		require.Equal(t, r.keep, found.WrittenNs != 0, name)
		if r.keep {
			found.Standings = nil
			require.Equal(t, r.Lease, found.Lease, name)
		}
	}
	m.monotonicNs = leaseNow + 3600*second
	freed, status = table.Clean(&scratch, table.Windows(), 100*second)
	require.Equal(t, OK, status)
	require.Equal(t, kept-1, freed, "all but the units that the service has not counted")

	m.monotonicNs = leaseNow - 3600*second
	freed, status = table.Clean(&scratch, table.Windows(), 100*second)
	require.Equal(t, OK, status)
	require.EqualValues(t, 1, freed, "of another epoch of the clock")
}
