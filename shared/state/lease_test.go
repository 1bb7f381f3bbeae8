package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

const leaseNow int64 = 5 * second

func leasesOf(store Store, windows int, capacity uint32) *LeaseTable {
	return NewTables(store, seeded(1), 1, 1).LeaseTable(CounterID{1}, 7, windows, capacity)
}

func readLease(t *testing.T, l *LeaseTable, key string, nowNs int64) *LeaseEntry {
	t.Helper()
	e := &LeaseEntry{}
	require.Equal(t, OK, l.Read(e, []byte(key), 100*second, nowNs))
	return e
}

func grantLeft(stream, number, units uint32, endNs int64) leased.GrantUnits {
	return leased.GrantUnits{GrantID: leased.GrantID{Stream: stream, Number: number, EndNs: endNs}, Units: units}
}

// held is the lease, without memory for standings.
func held(e *LeaseEntry) leased.Lease {
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

	want := leased.Lease{
		Grants: [leased.MaxGrants]leased.GrantUnits{
			grantLeft(3, 9, 7, leaseNow+second), grantLeft(4, 10, 8, leaseNow+2*second),
		},
		RefillUntilNs: 14,
		SilentUntilNs: 16,
		Uncharged:     leased.Uncharged{Units: 18},
		Rate:          leased.Rate{FromNs: 17, Units: 19, Before: 21},
		Standings:     []leased.Standing{{Used: 1, ResetNs: 2}, {Used: 3, ResetNs: 4}},
	}
	want.Deny(13, leased.Denial{UntilNs: 11, PassNs: limit.Never})
	want.Uncharged.Tell(leased.Telling{}, 0, 15)
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

	const longAgo = leaseNow - 20*second
	store.monotonicNs = leaseNow + 1
	found = readLease(t, l, "k", longAgo)
	require.EqualValues(t, 14, found.Left(leaseNow), "a worker that has stood still reads the clock again")
	require.Equal(t, store.monotonicNs, found.NowNs)

	store.monotonicNs = longAgo
	require.Empty(t, held(readLease(t, l, "k", longAgo)), "a record of an earlier start of the clock holds nothing")
}

func TestAFullPageDropsTheSmallestLease(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, units := range []uint32{5, 3, 8, 9} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow)
		e.Grants[0] = grantLeft(1, 1, units, leaseNow+second)
		require.Equal(t, OK, l.Write(e))
	}
	e := readLease(t, l, "new", leaseNow)
	e.Grants[0] = grantLeft(1, 2, 1, leaseNow+second)
	require.Equal(t, OK, l.Write(e))
	require.EqualValues(t, 3, e.Replaced)
	require.Zero(t, readLease(t, l, "1", leaseNow).Left(leaseNow))

	e = readLease(t, l, "later", leaseNow+second)
	e.Grants[0] = grantLeft(1, 3, 2, leaseNow+2*second)
	require.Equal(t, OK, l.Write(e))
	require.Zero(t, e.Replaced, "leases that have ended hold nothing")

	const restarted = leaseNow - 20*second
	e = readLease(t, l, "after a start", restarted)
	e.Grants[0] = grantLeft(1, 1, 1, restarted+second)
	require.Equal(t, OK, l.Write(e))
	require.Zero(t, e.Replaced, "leases of an earlier start of the clock hold nothing")
}

func TestAStrandedGrantIsReplaced(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	e := readLease(t, l, "k", leaseNow)
	for i := range e.Grants {
		e.Grants[i] = grantLeft(uint32(i), 1, 5, leaseNow)
	}
	require.Equal(t, OK, l.Write(e))
	e = readLease(t, l, "k", leaseNow+3*second)
	require.True(t, e.Put(grantLeft(9, 1, 2, leaseNow+4*second)))
	require.Equal(t, OK, l.Write(e))
	require.EqualValues(t, 5, e.Replaced)
	require.EqualValues(t, 2, readLease(t, l, "k", leaseNow+3*second).Left(leaseNow+3*second))
}

func TestAFullPageDropsTheOldestOfEqualLeases(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, written := range []int64{7, 5, 6, 8} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow+written)
		e.Rate.Units = 1
		require.Equal(t, OK, l.Write(e))
	}
	e := readLease(t, l, "new", leaseNow+9)
	require.Equal(t, OK, l.Write(e))
	for i, kept := range []bool{true, false, true, true} {
		require.Equal(t, kept, readLease(t, l, fmt.Sprint(i), leaseNow+9).WrittenNs != 0, i)
	}
}

// TestAFullPageKeepsUnitsThatAreNotCharged: the service has to hear of what was admitted without it.
func TestAFullPageKeepsUnitsThatAreNotCharged(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, record := range []leased.Lease{
		{Uncharged: leased.Uncharged{Units: 1000}},
		{Grants: grants(grantLeft(1, 1, 9, leaseNow+second))},
		{Uncharged: leased.Uncharged{Units: 2}, Grants: grants(grantLeft(1, 2, 3, leaseNow+second))},
		{Rate: leased.Rate{Units: 1}},
	} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow+int64(i))
		e.Lease = record
		require.Equal(t, OK, l.Write(e))
	}
	for n, replaced := range []struct {
		record int
		units  uint32
	}{{3, 0}, {1, 9}, {2, 3}, {0, 0}} {
		e := readLease(t, l, fmt.Sprint("new", n), leaseNow+9)
		e.Uncharged.Add(5000)
		require.Equal(t, OK, l.Write(e))
		require.Equal(t, replaced.units, e.Replaced, n)
		require.Zero(t, readLease(t, l, fmt.Sprint(replaced.record), leaseNow+9).WrittenNs, n)
	}
}

func TestLeasesOutliveMoreWindows(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 1, 100)
	e := readLease(t, l, "k", leaseNow)
	e.Grants[0], e.Standings = grantLeft(1, 1, 5, leaseNow+second), []leased.Standing{{Used: 1, ResetNs: 2}}
	require.Equal(t, OK, l.Write(e))

	more := NewTables(store, seeded(1), 1, 2).LeaseTable(CounterID{1}, 7, 3, 100)
	found := readLease(t, more, "k", leaseNow)
	require.EqualValues(t, 5, found.Left(leaseNow))
	require.Equal(t, []leased.Standing{{Used: 1, ResetNs: 2}}, found.Standings)
}

// Neither another key nor other windows find the units of a record that has their hash.
func TestUnitsOfAnotherKeyAreNotSpent(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 1, 100)
	e := readLease(t, l, "k", leaseNow)
	e.Grants[0] = grantLeft(1, 1, 5, leaseNow+second)
	require.Equal(t, OK, l.Write(e))

	hourly := NewTables(store, seeded(1), 1, 2).LeaseTable(CounterID{1}, 8, 1, 100)
	require.Zero(t, readLease(t, hourly, "k", leaseNow).Left(leaseNow))

	sameHash := LeaseKey{e.key.hash, e.key.identity ^ 1}
	other := &LeaseEntry{}
	require.Equal(t, OK, l.ReadHashed(other, sameHash, 100*second, leaseNow))
	require.Zero(t, other.Left(leaseNow))
	require.Zero(t, other.WrittenNs)
	other.Grants[0] = grantLeft(1, 2, 3, leaseNow+second)
	require.Equal(t, OK, l.Write(other))
	require.EqualValues(t, 5, other.Replaced, "both have one record")
	require.Zero(t, readLease(t, l, "k", leaseNow).Left(leaseNow))
	require.Equal(t, OK, l.ReadHashed(other, sameHash, 100*second, leaseNow))
	require.EqualValues(t, 3, other.Left(leaseNow))
}

func grants(g leased.GrantUnits) [leased.MaxGrants]leased.GrantUnits {
	return [leased.MaxGrants]leased.GrantUnits{1: g}
}

func blockedUntil(untilNs int64) (l leased.Lease) {
	l.Block(leased.Denial{UntilNs: untilNs})
	return l
}

// TestCleanKeepsLeases: what a key holds is there after it, and is spent once.
func TestCleanKeepsLeases(t *testing.T) {
	m := newMemory()
	l := leasesOf(m, 1, 100)
	later := leaseNow + second
	rate := leased.Rate{FromNs: leaseNow, Units: 5}
	records := map[string]struct {
		leased.Lease

		keep bool
	}{
		"live":         {leased.Lease{Grants: grants(grantLeft(1, 1, 5, later))}, true},
		"to return":    {leased.Lease{Grants: grants(grantLeft(1, 1, 5, leaseNow-second))}, true},
		"stranded":     {leased.Lease{Grants: grants(grantLeft(1, 1, 5, leaseNow-3*second))}, false},
		"spent":        {leased.Lease{Grants: grants(grantLeft(1, 1, 0, later)), Rate: rate}, false},
		"denied":       {blockedUntil(later), true},
		"denied once":  {blockedUntil(leaseNow), false},
		"asked":        {leased.Lease{RefillUntilNs: later}, true},
		"unreachable":  {leased.Lease{SilentUntilNs: later}, true},
		"not told yet": {leased.Lease{Uncharged: leased.Uncharged{Units: 1}}, true},
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
