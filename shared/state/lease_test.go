package state

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

const leaseNow int64 = 5 * second

func leasesOf(store Store, windows int, capacity uint32) *Leases {
	return NewTables(store, seeded(1), 1, 1).Leases(CounterID{1}, windows, capacity)
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
		Units: 7, EndNs: leaseNow + second, Windows: 1 << 60, Stream: 3, Grant: 9,
		DeniedNs: 11, PassNs: -1, DeniedCost: 13, AskedNs: 15, SilentNs: 16, Uncharged: 18, RateNs: 17, RateNow: 19, RateBefore: 21,
		Standings: []Standing{{Used: 1, ResetNs: 2}, {Used: 3, ResetNs: 4}},
	}
	e.Lease = want
	require.Equal(t, OK, l.Write(e))

	other := leasesOf(store, 2, 1000) // another worker
	found := readLease(t, other, "k", leaseNow+5)
	require.Equal(t, want, found.Lease)
	require.Equal(t, leaseNow, found.WrittenNs)
	require.Empty(t, held(readLease(t, other, "l", leaseNow)))

	found.Units--
	require.Equal(t, OK, other.Write(found))
	require.Equal(t, Mismatch, l.Write(e), "the other worker wrote first")
	require.Equal(t, OK, l.Reread(e, 100*second, leaseNow))
	require.EqualValues(t, 6, e.Units)

	require.Empty(t, held(readLease(t, l, "k", leaseNow-20*second)),
		"a record of another epoch of the clock holds nothing")
}

func TestLeasesAreSpentOnce(t *testing.T) {
	const units = 5000
	store := newMemory()
	first := leasesOf(store, 1, 100)
	e := readLease(t, first, "k", leaseNow)
	e.Units = units
	require.Equal(t, OK, first.Write(e))
	var spent atomic.Int64
	inParallel(store, func(_ int, tables *Tables) {
		l := tables.Leases(CounterID{1}, 1, 100)
		e := &LeaseEntry{}
		for {
			if l.Read(e, []byte("k"), 100*second, leaseNow) != OK || e.Units == 0 {
				return
			}
			e.Units--
			if l.Write(e) == OK {
				spent.Add(1)
			}
		}
	})
	require.EqualValues(t, units, spent.Load())
}

func TestAFullPageDropsTheSmallestLease(t *testing.T) {
	l := leasesOf(newMemory(), 1, 4)
	for i, units := range []uint32{5, 3, 8, 9} {
		e := readLease(t, l, fmt.Sprint(i), leaseNow)
		e.Units, e.EndNs = units, leaseNow+second
		require.Equal(t, OK, l.Write(e))
	}
	e := readLease(t, l, "new", leaseNow)
	e.Units = 1
	require.Equal(t, OK, l.Write(e))
	require.EqualValues(t, 3, e.Lost)
	require.Zero(t, readLease(t, l, "1", leaseNow).Units)

	e = readLease(t, l, "later", leaseNow+second)
	e.Units = 2
	require.Equal(t, OK, l.Write(e))
	require.Zero(t, e.Lost, "leases that have ended hold nothing")
}

func TestLeasesOutliveMoreWindows(t *testing.T) {
	store := newMemory()
	l := leasesOf(store, 1, 100)
	e := readLease(t, l, "k", leaseNow)
	e.Units, e.Standings = 5, []Standing{{Used: 1, ResetNs: 2}}
	require.Equal(t, OK, l.Write(e))

	more := NewTables(store, seeded(1), 1, 2).Leases(CounterID{1}, 3, 100)
	found := readLease(t, more, "k", leaseNow)
	require.EqualValues(t, 5, found.Units)
	require.Equal(t, []Standing{{Used: 1, ResetNs: 2}, {}, {}}, found.Standings)
}

func TestLeaseRate(t *testing.T) {
	const period = 100
	var l Lease
	l.Spent(1000, period, 10)
	require.EqualValues(t, 10, l.Rate(1000, period))
	require.EqualValues(t, 10, l.Rate(1099, period))
	require.EqualValues(t, 5, l.Rate(1150, period))
	l.Spent(1150, period, 4)
	require.EqualValues(t, 4+5, l.Rate(1150, period))
	require.EqualValues(t, 0, l.Rate(1300, period))
	l.Spent(5000, period, 1<<32-1)
	l.Spent(5001, period, 1)
	require.Equal(t, uint32(1<<32-1), l.Rate(5001, period), "saturates")
}
