package state

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
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

// pageKey is the key of the desk's only page.
func (d *desk) pageKey() []byte {
	at := d.table.placement.pageKey(0)
	return at[:]
}

func goldenDefinition() Definition {
	return definition("x", 3, aligned(9, second, 0), perKey(5, 2*second), aligned(20, 60*second, 7*second))
}

// fillGolden fills a page of three slots with four keys, so that it has a floor
// and a sliding window, and adds a counter of another owner.
func fillGolden(d *desk) {
	other := configured(d.store, "p", 91*second, definition("y", 70, perKey(5, 2*second)))
	require.True(d, hit(d, other, []byte("a"), 99*second, 2))
	for i, key := range []string{"a", "b", "c", "d"} {
		require.True(d, hit(d, d.table, []byte(key), 100*second+int64(i)*ms, uint32(2+i/2)))
	}
	require.Equal(d, "sl/000100000000", string(d.pageKey()))
}

func usagesDefinition() Definition {
	elastic := elastic(7 * second)
	elastic.Limit = 9
	jittered := jittered(10*second, 30)
	jittered.Limit, jittered.OffsetNs = 9, 3*second
	return definition("x", 2,
		slidingCounter(9, second), slidingLog(5, 2*second), tokenBucket(20, 3, 5*second), elastic, jittered)
}

func holdsDefinition() Definition {
	return definition("x", 2, perKey(9, 60*second), holding())
}

func blocksDefinition() Definition {
	return definition("x", 2, perKey(2, 10*second), limit.NewBlock(60*second, true))
}

// fillBlocks has one key blocked in its record, and one in the floor.
func fillBlocks(d *desk) {
	for i, key := range []string{"a", "b", "c"} {
		now := 100*second + int64(i)*second
		require.True(d, hit(d, d.table, []byte(key), now, 2))
		if key == "c" {
			return
		}
		d.now = now
		d.read(key)
		require.Equal(d, OK, d.table.Deny(&d.entry, 0, true))
	}
}

// fillUsages fills a page of two slots with three keys, so that it has usages and
// floors of every kind, and a key that was reset.
func fillUsages(d *desk) {
	for i, key := range []string{"a", "b", "c"} {
		require.True(d, hit(d, d.table, []byte(key), 100*second+int64(i)*300*ms, uint32(1+i)))
	}
	require.True(d, hit(d, d.table, []byte("c"), 101*second+500*ms, 1))
	d.now = 101*second + 600*ms
	d.reset("b")
}

// fillHolds has keys hold: one that was evicted, one that began from that floor, one that
// was reset and one that has lapsed.
func fillHolds(d *desk) {
	d.now = 177 * second
	d.hold("a", 1)
	d.pass(11 * second)
	d.hold("b", 2)
	c, _ := d.hold("c", 3) // evicts a
	d.settle("c", c, 3)
	d.pass(11 * second)
	d.hold("d", 4) // evicts c, and shares a's
	d.reset("b")
	d.hold("b", 5)
}

// goldenCase is a table whose page and directory are golden bytes, and what its keys have
// used at now.
type goldenCase struct {
	page, directory string
	def             Definition
	fill            func(*desk)
	now             int64
	want            map[string][]uint32
}

func goldenCases() []goldenCase {
	return []goldenCase{
		{"page", "directory", goldenDefinition(), fillGolden, 100*second + 4*ms, map[string][]uint32{
			"a": {2, 2, 2}, // from the floor
			"b": {2, 2, 2}, "c": {3, 3, 3}, "d": {3, 3, 3},
		}},
		{"usages", "usages-directory", usagesDefinition(), fillUsages, 101*second + 700*ms, map[string][]uint32{
			"a": {0, 1, 0, 1, 1}, // from the floor; its token has been refilled
			"b": {0, 0, 0, 0, 0}, // reset
			"c": {1, 4, 4, 4, 4}, // came into a full page and has 3 + 1 units, on an empty floor
		}},
		{"holds", "holds-directory", holdsDefinition(), fillHolds, 199 * second, map[string][]uint32{
			"a": {3, 1}, // from the floor
			"b": {0, 5}, // reset
			"d": {0, 5}, // its own and the floor's, before it evicted
		}},
		{"blocks", "blocks-directory", blocksDefinition(), fillBlocks, 103 * second, map[string][]uint32{
			"a": {2, 1}, // from the floor
			"b": {2, 1},
			"c": {2, 0},
		}},
	}
}

// TestGolden: every kind of usage, floor and record, the directory and the seed are written as
// the golden bytes, and read from them.
func TestGolden(t *testing.T) {
	for _, c := range goldenCases() {
		d := &desk{T: t, store: newMemory()}
		d.store.monotonicNs = 77 * second
		d.table = configured(d.store, "o", 90*second, c.def)
		c.fill(d)
		files := map[string][]byte{"seed": seedKey, c.directory: directoryKey, c.page: d.pageKey()}
		if c.page == "holds" {
			files["holds-clock"] = holdClockKey
		}
		released := newMemory()
		released.monotonicNs = d.store.monotonicNs
		for name, key := range files {
			requireGolden(t, name, d.store.bytes(key))
			released.Set(key, golden(t, name), 0)
		}
		for key := range d.store.values {
			require.LessOrEqual(t, len(key), 15, "a longer key costs the host a second allocation")
			require.True(t, strings.HasPrefix(key, "sl"), key)
		}
		d.store = released
		d.table = configured(released, "o", 90*second, c.def)
		d.now = c.now
		for key, want := range c.want {
			require.Equal(t, want, used(t, d.table, []byte(key), c.now), "%s: %s", c.page, key)
		}
		d.read("a")
		if c.page == "holds" {
			d.pass(70 * second)
			d.requireStands("d", 1, 4, "a's has lapsed")
		} else {
			require.True(t, d.entry.FromFloor)
		}
	}
}

// Where things lie in pages, definitions and directories, as their packages draw it.
const (
	offVersion, offSlots, offWindows, offEpoch = 0, 2, 3, 4
	offKind, offSpare, offFloorTime, headBytes = 1, 10, 12, 20

	offFlags, offExtra, offPeriod, offOffset = 1, 2, 4, 12

	elasticBit = 1

	directoryHeadBytes, registrationHeadBytes = 8, 50
)

// damage changes the bytes of a value.
type damage func(b []byte) []byte

// bytesAt overwrites bytes.
func bytesAt(offset int, bytes ...byte) damage {
	return func(b []byte) []byte {
		copy(b[offset:], bytes)
		return b
	}
}

func inWindow(i, offset int, bytes ...byte) damage {
	return bytesAt(headBytes+i*page.WindowBytes+offset, bytes...)
}

func inFirstTable(offset int, bytes ...byte) damage {
	return bytesAt(directoryHeadBytes+offset, bytes...)
}

// addAt adds to a byte.
func addAt(offset int, n byte) damage {
	return func(b []byte) []byte {
		b[offset] += n
		return b
	}
}

// resized makes the value n bytes longer, at most 1.
func resized(n int) damage {
	return func(b []byte) []byte { return append(b, 0)[:max(len(b)+n, 0)] }
}

// cutTo makes the value n bytes long.
func cutTo(n int) damage {
	return func(b []byte) []byte { return b[:n] }
}

func u64(v int64) []byte { return le.AppendUint64(nil, uint64(v)) }

var damagedPages = map[string]damage{
	"empty":                         cutTo(0),
	"cut in the header":             cutTo(headBytes - 1),
	"cut in the definitions":        cutTo(headBytes + page.WindowBytes + 3),
	"cut in the last record":        resized(-1),
	"a byte too long":               resized(1),
	"version 0":                     bytesAt(offVersion, 0),
	"a newer version":               bytesAt(offVersion, 2),
	"kind":                          bytesAt(offKind, 9),
	"no slots":                      bytesAt(offSlots, 0),
	"other slots":                   bytesAt(offSlots, 4),
	"fewer windows":                 bytesAt(offWindows, 2),
	"too many windows":              bytesAt(offWindows, 17),
	"spare":                         bytesAt(offSpare, 1),
	"floor time":                    bytesAt(offFloorTime+7, 0x80),
	"algorithm":                     inWindow(0, 0, 200),
	"algorithm 0":                   inWindow(0, 0, 0),
	"flags":                         inWindow(0, offFlags, 1),
	"definition's spare":            inWindow(0, offExtra, 1),
	"period too short":              inWindow(0, offPeriod, u64(999_999)...),
	"period too long":               inWindow(0, offPeriod, u64(limit.MaxPeriodNs+1)...),
	"period negative":               inWindow(0, offPeriod+7, 0x80),
	"offset of a period":            inWindow(0, offOffset, u64(second)...),
	"offset negative":               inWindow(0, offOffset+7, 0x80),
	"other windows, the same epoch": inWindow(0, offPeriod, u64(3*second)...),
	"an unknown epoch":              bytesAt(offEpoch, 77, 0, 0, 0),
}

var damagedDefinitions = map[string]damage{
	"a counter that is elastic":       inWindow(0, offFlags, elasticBit),
	"a log that is elastic":           inWindow(1, offFlags, elasticBit),
	"a bucket that is elastic":        inWindow(2, offFlags, elasticBit),
	"an unknown flag":                 inWindow(3, offFlags, 2),
	"an unknown flag beside a known":  inWindow(3, offFlags, 3),
	"a fixed window that is elastic":  inWindow(4, offFlags, elasticBit),
	"a counter with jitter":           inWindow(0, offExtra, 1),
	"a bucket with units":             inWindow(2, offExtra, 1),
	"a per-key window with jitter":    inWindow(3, offExtra, 1),
	"a jitter above 100":              inWindow(4, offExtra, 101),
	"a jitter that only a byte holds": inWindow(4, offExtra+1, 1),
	"a log of more than 512 units":    inWindow(1, offExtra+1, 3),
	"a log of other units":            inWindow(1, offExtra, 6),
	"no jitter, the size of one":      inWindow(4, offExtra, 0),
	"a newer algorithm":               inWindow(4, 0, 6),
}

var damagedDirectories = map[string]damage{
	"empty":            cutTo(0),
	"version":          bytesAt(0, 2),
	"kind":             bytesAt(1, 1),
	"more tables":      addAt(2, 1),
	"fewer tables":     addAt(2, 255),
	"cut":              resized(-1),
	"too long":         resized(1),
	"no slots":         inFirstTable(18, 0),
	"too many windows": inFirstTable(19, 17),
	"no pages":         inFirstTable(20, 0, 0, 0, 0),
	"base past epoch":  inFirstTable(24, 99, 0, 0, 0),
	"more owners":      inFirstTable(49, 1),
}

var damagedSeeds = map[string]damage{"version": bytesAt(0, 2), "kind": bytesAt(1, 2), "cut": resized(-1)}

var damagedHeartbeats = map[string]damage{
	"empty": cutTo(0), "version": bytesAt(0, 2), "kind": bytesAt(1, 2), "cut": resized(-1), "more owners": addAt(2, 1),
}

// eachDamage runs check on a desk for each damage to a value of it.
func eachDamage(
	t *testing.T, def Definition, fill func(*desk), key func(*desk) []byte, all map[string]damage, check func(*desk),
) {
	for name, damage := range all {
		t.Run(name, func(t *testing.T) {
			d := &desk{T: t, store: newMemory()}
			d.table = configured(d.store, "o", 90*second, def)
			fill(d)
			damaged := damage(d.store.bytes(key(d)))
			d.store.Set(key(d), damaged, 0)
			writes := d.store.cas
			check(d)
			require.Equal(t, string(damaged), string(d.store.bytes(key(d))), "it is not changed")
			require.Equal(t, writes, d.store.cas, "nothing is written")
		})
	}
}

// What this build cannot read is refused and not changed.
func TestADamagedPageIsRefused(t *testing.T) {
	check := func(d *desk) {
		require.Equal(d, Failed, d.table.Read(new(Entry), keyed(d.table, []byte("a")), 102*second))
	}
	eachDamage(t, goldenDefinition(), fillGolden, (*desk).pageKey, damagedPages, check)
	eachDamage(t, usagesDefinition(), fillUsages, (*desk).pageKey, damagedDefinitions, check)
}

func TestADamagedDirectoryOrSeedIsRefused(t *testing.T) {
	check := func(d *desk) { // d's worker has read them
		fresh := configured(d.store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
		require.Equal(d, Failed, fresh.Read(new(Entry), keyed(fresh, []byte("a")), 1))
	}
	directory := func(*desk) []byte { return directoryKey }
	seed := func(*desk) []byte { return seedKey }
	eachDamage(t, goldenDefinition(), fillGolden, directory, damagedDirectories, check)
	eachDamage(t, goldenDefinition(), fillGolden, seed, damagedSeeds, check)
}

func TestDamagedHeartbeatsAreRefused(t *testing.T) {
	fill := func(d *desk) {
		fillGolden(d)
		require.Equal(d, OK, d.table.parent.Heartbeat(100*second))
	}
	key := func(*desk) []byte { return heartbeatsKey }
	eachDamage(t, goldenDefinition(), fill, key, damagedHeartbeats, func(d *desk) {
		require.Equal(d, Failed, d.table.parent.Heartbeat(100*second+2*directory.RoundNs))
	})
	d := &desk{T: t, store: newMemory()}
	d.table = configured(d.store, "o", 90*second, goldenDefinition())
	fill(d)
	d.store.Set(heartbeatsKey, []byte{}, 0)
	require.True(t, hit(t, d.table, []byte("new"), 101*second, 1), "counting goes on")
}

// TestTablesOfANewerBuildAreLeftAlone: after a rollback the older filter finds tables with
// windows that only the newer one knows. It leaves them as they are, and its other counters go on.
func TestTablesOfANewerBuildAreLeftAlone(t *testing.T) {
	d := &desk{T: t, store: newMemory()}
	d.table = configured(d.store, "o", 90*second, goldenDefinition())
	fillGolden(d)
	newer := d.store.bytes(directoryKey)
	newer[directoryHeadBytes+registrationHeadBytes] = 200
	d.store.Set(directoryKey, newer, 0)

	table := configured(d.store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
	require.Equal(t, OK, table.Read(new(Entry), keyed(table, []byte("a")), 3600*second))
	require.Len(t, d.store.directory(t).Tables, 3)
	require.Equal(t, newer[directoryHeadBytes:], d.store.bytes(directoryKey)[directoryHeadBytes:len(newer)])
}

// TestLogsGrowAndShrink: no unit is lost when a limit is raised, and a layout with
// more or less room than before gives no quota back.
func TestLogsGrowAndShrink(t *testing.T) {
	store := newMemory()
	key, now := []byte("k"), 100*second
	small := configured(store, "o", 1, definition("x", 4, slidingLog(3, anHour)))
	require.True(t, hit(t, small, key, now, 2))
	large := configured(store, "o", 2, definition("x", 4, slidingLog(6, anHour)))
	require.True(t, hit(t, large, key, now+1, 4), "a raised limit admits at once")
	require.False(t, hit(t, large, key, now+2, 1))
	require.False(t, hit(t, small, key, now+2, 1), "the old worker sees them all")
	lowered := configured(store, "o", 3, definition("x", 4, slidingLog(2, anHour)))
	require.False(t, hit(t, lowered, key, now+3, 1), "a lowered limit denies at once")
	require.EqualValues(t, 6, store.directory(t).Tables[0].Windows[0].Units, "a lowered limit forgets nothing")
	again := configured(store, "o", 4, definition("x", 4, slidingLog(6, anHour)))
	require.False(t, hit(t, again, key, now+anHour-1, 1))
	require.True(t, hit(t, again, key, now+anHour, 2))
	require.False(t, hit(t, again, key, now+anHour, 1))
}

// TestEveryAlgorithmIsPlayed: the random histories have every algorithm, but for
// months, which are longer than these: steptest has them.
func TestEveryAlgorithmIsPlayed(t *testing.T) {
	for _, a := range limit.Counting {
		played := slices.ContainsFunc(slices.Concat(floorShapes...), func(w limit.Window) bool { return w.Algorithm == a })
		require.Equal(t, a != limit.Calendar, played, "algorithm %d", a)
	}
}
