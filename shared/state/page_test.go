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

// page is the key of the desk's only page.
func (d *desk) page() []byte {
	at := d.table.pageKey(0)
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
	require.Equal(d, "sl/000100000000", string(d.page()))
}

func usagesDefinition() Definition {
	elastic := elastic(7 * second)
	elastic.Limit = 9
	jittered := jittered(10*second, 30)
	jittered.Limit, jittered.OffsetNs = 9, 3*second
	return definition("x", 2, slidingCounter(9, second), slidingLog(5, 2*second), tokenBucket(20, 3, 5*second), elastic, jittered)
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

// TestGolden: every kind of usage, floor and record, the directory and the seed are written as
// the golden bytes, and read from them.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		page, directory string
		def             Definition
		fill            func(*desk)
		now             int64
		want            map[string][]uint32
	}{
		{"page", "directory", goldenDefinition(), fillGolden, 100*second + 4*ms, map[string][]uint32{
			"a": {2, 2, 2}, // from the floor
			"b": {2, 2, 2}, "c": {3, 3, 3}, "d": {3, 3, 3},
		}},
		{"usages", "usages-directory", usagesDefinition(), fillUsages, 101*second + 700*ms, map[string][]uint32{
			"a": {0, 1, 0, 1, 1}, // from the floor; its token has been refilled
			"b": {0, 0, 0, 0, 0}, // reset
			"c": {1, 4, 4, 4, 4}, // came into a full page and has 3 + 1 units, on an empty floor
		}},
		{"holds", "holds-directory", definition("x", 2, perKey(9, 60*second), holding()), fillHolds, 199 * second, map[string][]uint32{
			"a": {3, 1}, // from the floor
			"b": {0, 5}, // reset
			"d": {0, 5}, // its own and the floor's, before it evicted
		}},
	} {
		d := &desk{T: t, store: newMemory()}
		d.store.monotonicNs = 77 * second
		d.table = configured(d.store, "o", 90*second, c.def)
		c.fill(d)
		files := map[string][]byte{"seed": seedKey, c.directory: directoryKey, c.page: d.page()}
		if c.page == "holds" {
			files["holds-clock"] = heldClockKey
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
		table := configured(released, "o", 90*second, c.def)
		for key, want := range c.want {
			require.Equal(t, want, used(t, table, []byte(key), c.now), "%s: %s", c.page, key)
		}
		d.store, d.table, d.now = released, table, c.now
		if d.read("a"); c.page == "holds" {
			d.pass(70 * second)
			d.requireStands("d", 1, 4, "a's has lapsed")
		} else {
			require.True(t, d.entry.FromFloor)
		}
	}
}

// TestDamaged: what this build cannot read is refused and not changed.
func TestDamaged(t *testing.T) {
	type damage func(b []byte) []byte
	set := func(at int, bytes ...byte) damage {
		return func(b []byte) []byte { copy(b[at:], bytes); return b }
	}
	u64 := func(v int64) []byte { return le.AppendUint64(nil, uint64(v)) }
	window := func(i, offset int, bytes ...byte) damage { return set(headBytes+i*windowBytes+offset, bytes...) }
	table := func(offset int, bytes ...byte) damage { return set(directoryHeadBytes+offset, bytes...) }
	add := func(at int, n byte) damage { return func(b []byte) []byte { b[at] += n; return b } }
	resized := func(n int) damage {
		return func(b []byte) []byte { return append(b, 0)[:max(len(b)+n, 0)] }
	}
	const flags, extra, period, offset = 1, 2, 4, 12
	for _, of := range []struct {
		name string
		key  []byte // nil: the page's
		def  Definition
		fill func(*desk)
		by   map[string]damage
	}{
		{"page", nil, goldenDefinition(), fillGolden, map[string]damage{
			"empty": resized(-1 << 20), "cut in the header": func(b []byte) []byte { return b[:headBytes-1] },
			"cut in the definitions": func(b []byte) []byte { return b[:headBytes+windowBytes+3] },
			"cut in the last record": resized(-1), "a byte too long": resized(1),
			"version 0": set(offVersion, 0), "a newer version": set(offVersion, 2), "kind": set(offKind, 9), "no slots": set(offSlots, 0),
			"other slots": set(offSlots, 4), "fewer windows": set(offWindows, 2), "too many windows": set(offWindows, 17),
			"spare": set(offSpare, 1), "floor time": set(offFloorTime+7, 0x80),
			"algorithm": window(0, 0, 200), "algorithm 0": window(0, 0, 0), "flags": window(0, flags, 1), "definition's spare": window(0, extra, 1),
			"period too short": window(0, period, u64(999_999)...), "period too long": window(0, period, u64(limit.MaxPeriodNs+1)...),
			"period negative": window(0, period+7, 0x80), "offset of a period": window(0, offset, u64(second)...),
			"offset negative": window(0, offset+7, 0x80), "other windows, the same epoch": window(0, period, u64(3*second)...),
			"an unknown epoch": set(offEpoch, 77, 0, 0, 0),
		}},
		{"definition", nil, usagesDefinition(), fillUsages, map[string]damage{
			"a counter that is elastic": window(0, flags, elasticBit), "a log that is elastic": window(1, flags, elasticBit),
			"a bucket that is elastic": window(2, flags, elasticBit), "an unknown flag": window(3, flags, 2),
			"an unknown flag beside a known": window(3, flags, 3), "a fixed window that is elastic": window(4, flags, elasticBit),
			"a counter with jitter": window(0, extra, 1), "a bucket with units": window(2, extra, 1), "a per-key window with jitter": window(3, extra, 1),
			"a jitter above 100": window(4, extra, 101), "a jitter that only a byte holds": window(4, extra+1, 1),
			"a log of more than 512 units": window(1, extra+1, 3), "a log of other units": window(1, extra, 6),
			"no jitter, the size of one": window(4, extra, 0), "a newer algorithm": window(4, 0, 6),
		}},
		{"directory", directoryKey, goldenDefinition(), fillGolden, map[string]damage{
			"empty": resized(-1 << 20), "version": set(0, 2), "kind": set(1, 1), "more tables": add(2, 1), "fewer tables": add(2, 255),
			"cut": resized(-1), "too long": resized(1), "no slots": table(18, 0), "too many windows": table(19, 17), "no pages": table(20, 0, 0, 0, 0),
			"base past epoch": table(24, 99, 0, 0, 0), "more owners": table(49, 1),
		}},
		{"seed", seedKey, goldenDefinition(), fillGolden, map[string]damage{"version": set(0, 2), "kind": set(1, 2), "cut": resized(-1)}},
		{"heartbeats", heartbeatsKey, goldenDefinition(), func(d *desk) {
			fillGolden(d)
			require.Equal(d, OK, d.table.tables.Heartbeat(100*second))
		}, map[string]damage{
			"empty": resized(-1 << 20), "version": set(0, 2), "kind": set(1, 2), "cut": resized(-1), "more owners": add(2, 1),
		}},
	} {
		for name, damage := range of.by {
			t.Run(of.name+": "+name, func(t *testing.T) {
				d := &desk{T: t, store: newMemory()}
				d.table = configured(d.store, "o", 90*second, of.def)
				of.fill(d)
				key := of.key
				if key == nil {
					key = d.page()
				}
				damaged := damage(d.store.bytes(key))
				d.store.Set(key, damaged, 0)
				writes, fresh := d.store.cas, configured(d.store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
				switch of.name {
				case "directory", "seed": // this worker has read them
					require.Equal(t, Failed, fresh.Read(new(Entry), keyed(fresh, []byte("a")), 1))
				case "heartbeats":
					require.Equal(t, Failed, d.table.tables.Heartbeat(100*second+2*RoundNs))
					require.Equal(t, string(damaged), string(d.store.bytes(key)))
					require.True(t, hit(t, d.table, []byte("new"), 101*second, 1), "counting goes on")
					return
				default:
					require.Equal(t, Failed, d.table.Read(new(Entry), keyed(d.table, []byte("a")), 102*second))
				}
				require.Equal(t, writes, d.store.cas, "nothing is written")
			})
		}
	}
}

// TestTablesOfANewerBuildAreLeftAlone: after a rollback the older filter finds tables with
// windows that only the newer one knows. It leaves them as they are, and its other counters go on.
func TestTablesOfANewerBuildAreLeftAlone(t *testing.T) {
	d := &desk{T: t, store: newMemory()}
	d.table = configured(d.store, "o", 90*second, goldenDefinition())
	fillGolden(d)
	newer := d.store.bytes(directoryKey)
	newer[directoryHeadBytes+tableHeadBytes] = 200
	d.store.Set(directoryKey, newer, 0)

	table := configured(d.store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
	require.Equal(t, OK, table.Read(new(Entry), keyed(table, []byte("a")), 3600*second))
	require.Len(t, d.store.directory(t).tables, 3)
	require.Equal(t, newer[directoryHeadBytes:], d.store.bytes(directoryKey)[directoryHeadBytes:len(newer)])
}

// A hit from before a reset is not refunded after it, whatever has become of the layout.
func TestConvertKeepsTheGeneration(t *testing.T) {
	from := NewLayout(definition("x", 2, aligned(9, 10*second, 0)).Windows, 2)
	to := NewLayout(definition("x", 2, perKey(9, 20*second)).Windows, 2)
	old := newPage(&from, 3)
	generation := old.nextGeneration()
	old.place(&from, 1, 0xfeedface)
	old.setTime(&from, 1, second)
	old.mark(&from, 1, generation, true)
	got := old.convert(&from, &to, 8)
	require.True(t, got.readable())
	require.Equal(t, generation, got.generation())
	require.Equal(t, generation, got.recordGeneration(&to, 1))
	require.Equal(t, old.record(&from, 1)[:recordHeadBytes], got.record(&to, 1)[:recordHeadBytes], "that it was reset, too")
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
	require.EqualValues(t, 6, store.directory(t).tables[0].windows[0].Units, "a lowered limit forgets nothing")
	again := configured(store, "o", 4, definition("x", 4, slidingLog(6, anHour)))
	require.False(t, hit(t, again, key, now+anHour-1, 1))
	require.True(t, hit(t, again, key, now+anHour, 2))
	require.False(t, hit(t, again, key, now+anHour, 1))

	counted := limit.Usage{Log: []int64{1, 2, 3}}
	require.Equal(t, limit.Usage{Log: []int64{2, 3}, Cut: true}, fitLog(counted, 2))
	require.Equal(t, counted, fitLog(counted, 5))
	require.Equal(t, limit.Usage{Log: []int64{2, 2, 2, 3}, Cut: true}, fitLog(limit.Usage{Log: []int64{2, 3}, Cut: true}, 4))
}

func TestAPageOfLogsStaysSmall(t *testing.T) {
	for units := uint32(1); units <= limit.MaxLog; units++ {
		windows := []limit.Window{slidingLog(units, anHour)}
		g := GeometryFor(windows, 1_000_000)
		l := NewLayout(windows, int(g.Slots))
		require.LessOrEqual(t, l.ValueBytes(), 16<<10, "%d units, %d slots", units, g.Slots)
		require.GreaterOrEqual(t, g.Slots, uint8(4))
	}
}

// TestStoredAlgorithms: records hold every algorithm, and the random histories have it, but for
// months, which are longer than these: steptest has them.
func TestStoredAlgorithms(t *testing.T) {
	for _, a := range limit.Counting {
		part, floor := usageBytes(&limit.Window{Algorithm: a})
		require.True(t, part > 0 && floor > 0, "algorithm %d", a)
		require.Equal(t, a != limit.Calendar, slices.ContainsFunc(slices.Concat(floorShapes...), func(w limit.Window) bool { return w.Algorithm == a }), "algorithm %d", a)
	}
}
