package state

import (
	"fmt"
	"testing"

	"github.com/sluice-ratelimit/sluice/shared/state/directory"
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

func (m *memory) owners(t *testing.T) directory.Heartbeats {
	p, ok := directory.ReadHeartbeats(m.bytes(heartbeatsKey))
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
	const maxTables = int((directory.MissedRounds+2)*directory.RoundNs/livesNs) + 1 + directory.WaitingTables + 1
	half, peak := 0, 0
	for n := range 1000 {
		name := fmt.Sprint("filter", n)
		comes := configured(store, name, now, definition(name, 4, aligned(2, 3600*second, 0)))
		require.True(t, hit(t, comes, []byte("a"), now, 2), name)
		require.False(t, hit(t, comes, []byte("a"), now, 1), name)
		now = beat(t, now, livesNs, stays, comes)
		peak = max(peak, len(store.directory(t).Tables))
		require.LessOrEqual(t, peak, maxTables, name)
		require.LessOrEqual(t, len(store.owners(t).Owners), maxTables, name)
		if n == 499 {
			half = store.total()
		}
	}
	require.LessOrEqual(t, store.total(), half+half/10, "as much after a thousand as after five hundred")
	require.LessOrEqual(t, len(store.values), 3+maxTables,
		"the seed, the directory, the owners, and a page for each number")
	t.Logf("%d tables at most", peak)
	beat(t, now, (directory.MissedRounds+2)*directory.RoundNs, stays)
	require.LessOrEqual(t, len(store.directory(t).Tables), 1+directory.WaitingTables)
	require.Len(t, store.owners(t).Owners, 1)
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
	const rounds = 3 * directory.RoundNs
	for _, step := range []int64{50 * anHour, -70 * anHour, second, -second, rounds, -rounds} {
		now += step
		before := store.owners(t).Round
		for n := range tables {
			require.Equal(t, OK, tables[n].parent.Heartbeat(now))
			now += 100 * ms
		}
		require.LessOrEqual(t, store.owners(t).Round, before+1)
		now = beat(t, now, 7*second, tables...)
	}
	for _, e := range store.directory(t).Tables {
		require.Len(t, e.Owners, 1)
		require.Zero(t, e.VanishedNs)
	}
	now = beat(t, now, 10*directory.RoundNs, tables[0])
	require.Len(t, store.owners(t).Owners, 1, "rounds go on after steps")
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
	beat(t, now, 10*directory.RoundNs, vms...)
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
		for _, e := range store.directory(t).Tables {
			if e.Counter == def.Counter {
				owners = len(e.Owners)
			}
		}
		return owners
	}
	now = beat(t, now, directory.MissedRounds*directory.RoundNs, stays)
	require.Equal(t, 1, owned(), "it has not missed enough rounds yet")
	now = beat(t, now, 3*directory.RoundNs, stays)
	require.Zero(t, owned())
	require.Equal(t, OK, late.parent.registerAndAdopt(now, []*Table{late}), "the tick of a filter without heartbeats")
	require.Equal(t, 1, owned())
	now = beat(t, now, (directory.MissedRounds-1)*directory.RoundNs, stays)
	require.Equal(t, 1, owned())
	require.Equal(t, []uint32{1}, used(t, late, []byte("a"), now))
	require.Equal(t, OK, late.parent.Heartbeat(now))
	beat(t, now, 30*directory.RoundNs, stays, late)
	require.Equal(t, 1, owned())
}

// The bytes of heartbeats are part of the format.
func TestGoldenHeartbeats(t *testing.T) {
	p := directory.Heartbeats{
		Round: 7, BeganNs: 100 * second,
		Owners: []directory.Heartbeat{{ID: OwnerID("a"), Round: 7}, {ID: OwnerID("b"), Round: 3}},
	}
	requireGolden(t, "heartbeats", p.Append(nil))
	got, ok := directory.ReadHeartbeats(golden(t, "heartbeats"))
	require.True(t, ok)
	require.Equal(t, p, got)
}
