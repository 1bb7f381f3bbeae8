package state

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var update = flag.Bool("update", false, "rewrite the golden bytes in testdata")

func requireGolden(t *testing.T, name string, got []byte) {
	path := filepath.Join("testdata", name+".hex")
	text := ""
	for at := 0; at < len(got); at += 16 {
		text += hex.EncodeToString(got[at:min(at+16, len(got))]) + "\n"
	}
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "the format has changed: released filters read these bytes")
}

func golden(t *testing.T, name string) []byte {
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	require.NoError(t, err)
	return b
}

// goldenTable fills a page of three slots with four keys, so that it has a floor
// and a sliding window, and adds a counter of another owner.
func goldenTable(t *testing.T, store Store) *Table {
	def := definition("x", 3, aligned(9, second, 0), perKey(5, 2*second), aligned(20, 60*second, 7*second))
	table := configured(store, "o", 90*second, def)
	other := configured(store, "p", 91*second, definition("y", 70, perKey(5, 2*second)))
	require.True(t, hit(t, other, []byte("a"), 99*second, 2))
	for i, key := range []string{"a", "b", "c", "d"} {
		require.True(t, hit(t, table, []byte(key), 100*second+int64(i)*ms, uint32(2+i/2)))
	}
	return table
}

func TestGoldenBytes(t *testing.T) {
	store := newMemory()
	table := goldenTable(t, store)
	at, _ := table.place(table.hash([]byte("a")))
	require.Equal(t, "sl/000100000000", string(at[:]))
	requireGolden(t, "page", store.bytes(at[:]))
	requireGolden(t, "directory", store.bytes(directoryKey))
	requireGolden(t, "seed", store.bytes(seedKey))
	for key := range store.values {
		require.LessOrEqual(t, len(key), 15, "a longer key costs the host a second allocation")
		require.True(t, strings.HasPrefix(key, "sl"), key)
	}
}

// TestGoldenBytesAreRead reads the golden files, not what this build writes.
func TestGoldenBytesAreRead(t *testing.T) {
	store := newMemory()
	store.Set(seedKey, golden(t, "seed"), 0)
	store.Set(directoryKey, golden(t, "directory"), 0)
	store.Set([]byte("sl/000100000000"), golden(t, "page"), 0)
	table := configured(store, "o", 90*second, definition("x", 3, aligned(9, second, 0), perKey(5, 2*second), aligned(20, 60*second, 7*second)))
	now := 100*second + 4*ms
	require.Equal(t, []uint32{2, 2, 2}, used(t, table, []byte("b"), now))
	require.Equal(t, []uint32{3, 3, 3}, used(t, table, []byte("c"), now))
	require.Equal(t, []uint32{3, 3, 3}, used(t, table, []byte("d"), now))
	var e Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("a")), now))
	require.True(t, e.FromFloor)
	require.Equal(t, []uint32{2, 2, 2}, used(t, table, []byte("a"), now))
	require.Equal(t, 102*second, e.usage[1].EndNs)
}

// TestDamagedPages: a page that this build cannot read is refused and not changed.
func TestDamagedPages(t *testing.T) {
	definitionAt := func(i, offset int) int { return headBytes + i*windowBytes + offset }
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":                  func(b []byte) []byte { return nil },
		"cut in the header":      func(b []byte) []byte { return b[:headBytes-1] },
		"cut in the definitions": func(b []byte) []byte { return b[:definitionAt(1, 3)] },
		"cut in the last record": func(b []byte) []byte { return b[:len(b)-1] },
		"a byte too long":        func(b []byte) []byte { return append(b, 0) },
		"version 0":              func(b []byte) []byte { b[offVersion] = 0; return b },
		"a newer version":        func(b []byte) []byte { b[offVersion] = 2; return b },
		"kind":                   func(b []byte) []byte { b[offKind] = 9; return b },
		"no slots":               func(b []byte) []byte { b[offSlots] = 0; return b },
		"other slots":            func(b []byte) []byte { b[offSlots] = 4; return b },
		"fewer windows":          func(b []byte) []byte { b[offWindows] = 2; return b },
		"too many windows":       func(b []byte) []byte { b[offWindows] = 17; return b },
		"spare":                  func(b []byte) []byte { b[offSpare] = 1; return b },
		"floor time":             func(b []byte) []byte { b[offFloorTime+7] = 0x80; return b },
		"algorithm":              func(b []byte) []byte { b[definitionAt(0, 0)] = 200; return b },
		"algorithm 0":            func(b []byte) []byte { b[definitionAt(0, 0)] = 0; return b },
		"flags":                  func(b []byte) []byte { b[definitionAt(0, 1)] = 1; return b },
		"definition's spare":     func(b []byte) []byte { b[definitionAt(0, 2)] = 1; return b },
		"period too short":       func(b []byte) []byte { le.PutUint64(b[definitionAt(0, 4):], 999_999); return b },
		"period too long": func(b []byte) []byte {
			le.PutUint64(b[definitionAt(0, 4):], uint64(limit.MaxPeriodNs)+1)
			return b
		},
		"period negative": func(b []byte) []byte { b[definitionAt(0, 11)] = 0x80; return b },
		"offset of a period": func(b []byte) []byte {
			le.PutUint64(b[definitionAt(0, 12):], uint64(second))
			return b
		},
		"offset negative":               func(b []byte) []byte { b[definitionAt(0, 19)] = 0x80; return b },
		"other windows, the same epoch": func(b []byte) []byte { le.PutUint64(b[definitionAt(0, 4):], uint64(3*second)); return b },
		"an unknown epoch":              func(b []byte) []byte { le.PutUint32(b[offEpoch:], 77); return b },
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemory()
			table := goldenTable(t, store)
			at, _ := table.place(table.hash([]byte("a")))
			damaged := damage(store.bytes(at[:]))
			store.Set(at[:], damaged, 0)
			writes := store.writes
			require.Equal(t, Failed, table.Read(new(Entry), keyed(table, []byte("a")), 100*second))
			require.Equal(t, writes, store.writes)
			require.Equal(t, string(damaged), string(store.bytes(at[:])))
		})
	}
}

func TestDamagedDirectoryAndSeed(t *testing.T) {
	for name, c := range map[string]struct {
		key    []byte
		damage func(b []byte) []byte
	}{
		"directory: empty":            {directoryKey, func(b []byte) []byte { return nil }},
		"directory: version":          {directoryKey, func(b []byte) []byte { b[0] = 2; return b }},
		"directory: kind":             {directoryKey, func(b []byte) []byte { b[1] = 1; return b }},
		"directory: more tables":      {directoryKey, func(b []byte) []byte { b[2]++; return b }},
		"directory: fewer tables":     {directoryKey, func(b []byte) []byte { b[2]--; return b }},
		"directory: cut":              {directoryKey, func(b []byte) []byte { return b[:len(b)-1] }},
		"directory: too long":         {directoryKey, func(b []byte) []byte { return append(b, 0) }},
		"directory: no slots":         {directoryKey, func(b []byte) []byte { b[directoryHeadBytes+18] = 0; return b }},
		"directory: too many windows": {directoryKey, func(b []byte) []byte { b[directoryHeadBytes+19] = 17; return b }},
		"directory: no pages":         {directoryKey, func(b []byte) []byte { le.PutUint32(b[directoryHeadBytes+20:], 0); return b }},
		"directory: base past epoch":  {directoryKey, func(b []byte) []byte { le.PutUint32(b[directoryHeadBytes+24:], 99); return b }},
		"directory: more owners":      {directoryKey, func(b []byte) []byte { b[directoryHeadBytes+49] = 1; return b }},
		"seed: version":               {seedKey, func(b []byte) []byte { b[0] = 2; return b }},
		"seed: kind":                  {seedKey, func(b []byte) []byte { b[1] = 2; return b }},
		"seed: cut":                   {seedKey, func(b []byte) []byte { return b[:len(b)-1] }},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemory()
			goldenTable(t, store)
			damaged := c.damage(store.bytes(c.key))
			store.Set(c.key, damaged, 0)
			writes := store.writes
			table := configured(store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
			require.Equal(t, Failed, table.Read(new(Entry), keyed(table, []byte("a")), 1))
			require.Equal(t, writes, store.writes)
		})
	}
}

func heldDefinition() Definition {
	return definition("x", 2, perKey(9, 60*second), holding())
}

// TestGoldenHolds: what records and the floor hold is written as the golden bytes and read
// from them: of a key that was evicted, of one that began from that floor, of one that was
// reset and of one that has lapsed.
func TestGoldenHolds(t *testing.T) {
	store := newMemory()
	store.monotonicNs = 77 * second
	table := configured(store, "o", 90*second, heldDefinition())
	var e Entry
	hold := func(key string, units uint32) Receipt {
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte(key)), 100*second+store.monotonicNs))
		r, status := table.Hold(&e, units, true)
		require.Equal(t, OK, status)
		return r
	}
	pass := func(seconds int64) {
		for range seconds {
			store.monotonicNs += second
			table.tables.HeldNow()
		}
	}
	hold("a", 1)
	pass(11)
	hold("b", 2)
	c := hold("c", 3) // evicts a
	_, status := table.Settle(&e, keyed(table, []byte("c")), c, 100*second+store.monotonicNs, 3)
	require.Equal(t, OK, status)
	pass(11)
	hold("d", 4) // evicts c, and shares a's
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("b")), 100*second+store.monotonicNs))
	_, status = table.Reset(&e, true)
	require.Equal(t, OK, status)
	hold("b", 5)
	at, _ := table.place(table.hash([]byte("a")))
	requireGolden(t, "holds", store.bytes(at[:]))
	requireGolden(t, "holds-directory", store.bytes(directoryKey))
	requireGolden(t, "holds-clock", store.bytes(heldClockKey))

	released := newMemory()
	for name, key := range map[string][]byte{"seed": seedKey, "holds-directory": directoryKey, "holds": at[:], "holds-clock": heldClockKey} {
		released.Set(key, golden(t, name), 0)
	}
	released.monotonicNs = store.monotonicNs
	table = configured(released, "o", 90*second, heldDefinition())
	stands := func(key string) []uint32 {
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte(key)), 100*second+released.monotonicNs))
		return []uint32{table.Usage(&e, 0).Used, table.Held(&e)}
	}
	require.Equal(t, []uint32{3, 1}, stands("a"), "from the floor")
	require.Equal(t, []uint32{0, 5}, stands("b"), "reset")
	require.Equal(t, []uint32{0, 5}, stands("d"), "its own and the floor's, before it evicted")
	store = released
	pass(70)
	require.Equal(t, []uint32{1, 4}, stands("d"), "a's has lapsed")
}
