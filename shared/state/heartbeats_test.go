package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// beat sends the owners' heartbeats once a second for forNs nanoseconds, and
// returns the time afterwards.
func beat(t *testing.T, now, forNs int64, tables ...*Table) int64 {
	for end := now + forNs; now < end; now += second {
		for _, table := range tables {
			require.Equal(t, OK, table.parent.Heartbeat(now))
		}
	}
	return now
}

func (m *memory) owners(t *testing.T) heartbeats {
	p, ok := readHeartbeats(m.bytes(heartbeatsKey))
	require.True(t, ok)
	return p
}

// total is the size of all values and keys.
func (m *memory) total() (bytes int) {
	for key, s := range m.values {
		bytes += len(key) + len(s.value)
	}
	return bytes
}

// Owners that come and go leave nothing behind but those of the last minutes. One without
// requests ticks, and keeps its tables.
func TestAThousandOwnersStaySmall(t *testing.T) {
	store := newMemory()
	now := 1000 * second
	stays := configured(store, "stays", now, definition("rule", 4, aligned(2, 366*24*anHour, 0)))
	require.True(t, hit(t, stays, []byte("a"), now, 1))
	const livesNs = 10 * second
	const maxTables = int((MissedRounds+2)*RoundNs/livesNs) + 1 + WaitingTables + 1
	half, peak := 0, 0
	for n := range 1000 {
		name := fmt.Sprint("filter", n)
		comes := configured(store, name, now, definition(name, 4, aligned(2, 3600*second, 0)))
		require.True(t, hit(t, comes, []byte("a"), now, 2), name)
		require.False(t, hit(t, comes, []byte("a"), now, 1), name)
		now = beat(t, now, livesNs, stays, comes)
		peak = max(peak, len(store.directory(t).tables))
		require.LessOrEqual(t, peak, maxTables, name)
		require.LessOrEqual(t, len(store.owners(t).owners), maxTables, name)
		if n == 499 {
			half = store.total()
		}
	}
	require.LessOrEqual(t, store.total(), half+half/10, "as much after a thousand as after five hundred")
	require.LessOrEqual(t, len(store.values), 3+maxTables,
		"the seed, the directory, the owners, and a page for each number")
	t.Logf("%d tables at most", peak)
	beat(t, now, (MissedRounds+2)*RoundNs, stays)
	require.LessOrEqual(t, len(store.directory(t).tables), 1+WaitingTables)
	require.Len(t, store.owners(t).owners, 1)
	require.Equal(t, []uint32{1}, used(t, stays, []byte("a"), now))
}

// A step of the clock ends one round, and an owner that ticks does not miss it.
func TestAClockThatStepsLosesNoTables(t *testing.T) {
	store := newMemory()
	now := 100 * anHour
	var tables []*Table
	for _, name := range []string{"a", "b", "c"} {
		table := configured(store, name, 1, definition(name, 4, aligned(2, 366*24*anHour, 0)))
		require.True(t, hit(t, table, []byte("k"), now, 1))
		tables = append(tables, table)
	}
	now = beat(t, now, 10*second, tables...)
	for _, step := range []int64{50 * anHour, -70 * anHour, second, -second, 3 * RoundNs, -3 * RoundNs} {
		now += step
		before := store.owners(t).round
		for n := range tables {
			require.Equal(t, OK, tables[n].parent.Heartbeat(now))
			now += 100 * ms
		}
		require.LessOrEqual(t, store.owners(t).round, before+1)
		now = beat(t, now, 7*second, tables...)
	}
	for _, e := range store.directory(t).tables {
		require.Len(t, e.owners, 1)
		require.Zero(t, e.vanishedNs)
	}
	now = beat(t, now, 10*RoundNs, tables[0])
	require.Len(t, store.owners(t).owners, 1, "rounds go on after steps")
	require.Equal(t, []uint32{1}, used(t, tables[0], []byte("k"), now))
}

// Sixteen VMs of one owner write one heartbeat a round together, not one a tick.
func TestHeartbeatsAreWrittenRarely(t *testing.T) {
	store := newMemory()
	now := 1000 * second
	var vms []*Table
	for n := range 16 {
		for _, name := range []string{"a", "b", "c"} {
			table := configured(store, name, 1, definition(name, 4, aligned(2, anHour, 0)))
			require.True(t, n > 1 || hit(t, table, []byte("k"), now, 1))
			vms = append(vms, table)
		}
	}
	now = beat(t, now, second, vms...)
	writes := store.cas
	beat(t, now, 10*RoundNs, vms...)
	require.LessOrEqual(t, store.cas-writes, uint32(3*(10+1)))
	require.Greater(t, store.cas, writes)
}

// An owner that comes late finds its tables unchanged, also if it is a filter from
// before there were heartbeats: its rounds count from when it is noticed.
func TestALateOwnerFindsItsTables(t *testing.T) {
	store := newMemory()
	now := 1000 * second
	def := definition("late", 4, aligned(2, 24*anHour, 0))
	stays := configured(store, "stays", 1, definition("x", 4, aligned(2, anHour, 0)))
	late := configured(store, "late", 1, def)
	require.True(t, hit(t, late, []byte("a"), now, 1))
	require.True(t, hit(t, stays, []byte("a"), now, 1))
	owned := func() (owners int) {
		for _, e := range store.directory(t).tables {
			if e.counter == def.Counter {
				owners = len(e.owners)
			}
		}
		return owners
	}
	now = beat(t, now, MissedRounds*RoundNs, stays)
	require.Equal(t, 1, owned(), "it has not missed enough rounds yet")
	now = beat(t, now, 3*RoundNs, stays)
	require.Zero(t, owned())
	require.Equal(t, OK, late.parent.registerAndAdopt(now, []*Table{late}), "the tick of a filter without heartbeats")
	require.Equal(t, 1, owned())
	now = beat(t, now, (MissedRounds-1)*RoundNs, stays)
	require.Equal(t, 1, owned())
	require.Equal(t, []uint32{1}, used(t, late, []byte("a"), now))
	require.Equal(t, OK, late.parent.Heartbeat(now))
	beat(t, now, 30*RoundNs, stays, late)
	require.Equal(t, 1, owned())
}

// The bytes of heartbeats are part of the format.
func TestGoldenHeartbeats(t *testing.T) {
	p := heartbeats{round: 7, beganNs: 100 * second, owners: []heartbeat{{OwnerID("a"), 7}, {OwnerID("b"), 3}}}
	requireGolden(t, "heartbeats", p.append(nil))
	got, ok := readHeartbeats(golden(t, "heartbeats"))
	require.True(t, ok)
	require.Equal(t, p, got)
}
