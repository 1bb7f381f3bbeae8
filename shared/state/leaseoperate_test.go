package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCleanKeepsLeases: what a key holds is there after it, and is spent once.
func TestCleanKeepsLeases(t *testing.T) {
	l := leasesOf(newMemory(), 1, 100)
	later := leaseNow + second
	records := map[string]struct {
		Lease

		keep bool
	}{
		"live":         {Lease{Grants: [MaxGrants]Grant{1: {1, 1, 5, later}}}, true},
		"to return":    {Lease{Grants: [MaxGrants]Grant{1: {1, 1, 5, leaseNow - second}}}, true},
		"stranded":     {Lease{Grants: [MaxGrants]Grant{1: {1, 1, 5, leaseNow - 3*second}}}, false},
		"spent":        {Lease{Grants: [MaxGrants]Grant{1: {1, 1, 0, later}}, Rate: Rate{FromNs: leaseNow, Now: 5}}, false},
		"denied":       {Lease{DeniedNs: later}, true},
		"denied once":  {Lease{DeniedNs: leaseNow}, false},
		"asked":        {Lease{AskedNs: later}, true},
		"unreachable":  {Lease{SilentNs: later}, true},
		"not told yet": {Lease{Uncharged: 1}, true},
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
	var e LeaseEntry
	stats, status := l.Stats(&e, 100*second, leaseNow)
	require.Equal(t, OK, status)
	require.Equal(t, kept, stats.Keys)
	require.Positive(t, stats.Pages)
	require.Positive(t, stats.Bytes)
	require.GreaterOrEqual(t, stats.Slots, uint64(100))

	freed, status := l.Clean(&e, 100*second, leaseNow)
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
	freed, status = l.Clean(&e, 100*second, leaseNow+3600*second)
	require.Equal(t, OK, status)
	require.Equal(t, kept-1, freed, "all but the units that the service has not counted")

	freed, status = l.Clean(&e, 100*second, leaseNow-3600*second)
	require.Equal(t, OK, status)
	require.EqualValues(t, 1, freed, "of another epoch of the clock")
}

// TestCleanIsLateForASpender: between reading a lease and writing it, no clean
// brings back what was spent.
func TestCleanIsLateForASpender(t *testing.T) {
	store := newMemory()
	l, cleaner := leasesOf(store, 1, 100), leasesOf(store, 1, 100)
	for i := range 20 {
		key := fmt.Sprint(i)
		e := readLease(t, l, key, leaseNow)
		e.Grants[0] = Grant{1, 1, 2, leaseNow + second}
		require.Equal(t, OK, l.Write(e))
		spender := readLease(t, l, key, leaseNow)
		spender.Take(leaseNow, 2)
		require.Equal(t, OK, l.Write(spender))
		stale := readLease(t, l, key, leaseNow)
		_, status := cleaner.Clean(&LeaseEntry{}, 100*second, leaseNow)
		require.Equal(t, OK, status)
		require.Equal(t, Mismatch, l.Write(stale), "the page has changed")
		require.Zero(t, readLease(t, l, key, leaseNow).Left(leaseNow))
	}
}
