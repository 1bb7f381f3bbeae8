package directory

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const second = int64(1_000_000_000)

// ofOneTable returns a counter, and the bytes of a directory with its table, which one owner has registered.
func ofOneTable(t *testing.T) (def Definition, b []byte) {
	window := limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: second}
	def = Definition{Counter: CounterID{7}, Windows: []limit.Window{window}, Capacity: 9}
	var d Directory
	_, ok := d.Register(Owner{1, 1}, &def, second)
	require.True(t, ok)
	return def, d.Append(nil)
}

// A directory finds a counter's tables, and a free number, as soon as it is read, and still after a table has gone.
func TestADirectoryFindsItsTables(t *testing.T) {
	def, b := ofOneTable(t)
	d, ok := Read(b)
	require.True(t, ok)
	require.Equal(t, []int{0}, d.TablesOf(def.Counter))
	require.EqualValues(t, 1, d.freeNumber())

	d.Tables[0].leave(d.Tables[0].Owners[0], second)
	d.sweep(3600 * second)
	require.Empty(t, d.TablesOf(def.Counter))
	require.Zero(t, d.freeNumber())
}

// TestATableIsChosen: which table an owner gets if its counter has tables already.
func TestATableIsChosen(t *testing.T) {
	own, other := Owner{ID: 1}, Owner{ID: 2}
	windows := func(units ...uint32) (list []limit.Window) {
		for _, seconds := range units {
			list = append(list, limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: int64(seconds) * second})
		}
		return list
	}
	def := Definition{Counter: CounterID{7}, Windows: windows(60)}
	table := func(list []limit.Window, owners ...Owner) Registration {
		return Registration{Counter: def.Counter, Windows: list, Owners: owners}
	}
	unknown := table(windows(60), own)
	unknown.foreign = []byte{9}
	stranger := table(windows(60), own)
	stranger.Counter = CounterID{8}
	for name, c := range map[string]struct {
		tables []Registration
		want   int
	}{
		"these windows, of anybody":         {[]Registration{table(windows(60), other)}, 0},
		"the last of those":                 {[]Registration{table(windows(60), own), table(windows(60), other)}, 1},
		"rather than the only owner's":      {[]Registration{table(windows(60), other), table(windows(30), own)}, 0},
		"also if those come later":          {[]Registration{table(windows(30), own), table(windows(60), other)}, 1},
		"else the first that is its own":    {[]Registration{table(windows(30), own), table(windows(90), own)}, 0},
		"or that waits":                     {[]Registration{table(windows(30))}, 0},
		"but none that others have too":     {[]Registration{table(windows(30), own, other)}, -1},
		"none of windows that are unknown":  {[]Registration{unknown}, -1},
		"none of another counter":           {[]Registration{stranger}, -1},
		"none of windows that are too many": {[]Registration{table(windows(60, 90), other)}, -1},
	} {
		d := Directory{Tables: c.tables}
		require.Equal(t, c.want, d.choose(own, &def), name)
	}
}

// TestOnlySoManyTablesWait: more go at once, the first to vanish first, and those in use stay.
func TestOnlySoManyTablesWait(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var d Directory
		for n := range dice.IntN(4 * WaitingTables) {
			r := Registration{
				Number: uint16(n), VanishedNs: 1 + dice.Int64N(20),
				Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: second}},
			}
			if dice.IntN(3) == 0 {
				r.VanishedNs = 0
				r.Owners = []Owner{{1, 1}}
			}
			d.add(r)
		}
		want := slices.Clone(d.Tables)
		isWaiting := func(r Registration) bool { return r.VanishedNs > 0 }
		for len(want)-len(slices.DeleteFunc(slices.Clone(want), isWaiting)) > WaitingTables {
			first := -1
			for i := range want {
				if isWaiting(want[i]) && (first < 0 || want[i].VanishedNs < want[first].VanishedNs) {
					first = i
				}
			}
			want = slices.Delete(want, first, first+1)
		}
		d.sweep(30)
		require.Equal(t, want, d.Tables)
	}
}

// TestATableOfANewerBuildWaits: how long its records count is not known, so it stays until WaitingTables others vanish.
func TestATableOfANewerBuildWaits(t *testing.T) {
	_, b := ofOneTable(t)
	b[headBytes+registrationHeadBytes] = 60 // an algorithm that this build does not know
	d, ok := Read(b)
	require.True(t, ok)
	require.False(t, d.Tables[0].IsKnown())

	d.Tables[0].leave(d.Tables[0].Owners[0], second)
	d.sweep(3600 * second)
	require.Len(t, d.Tables, 1)
}
