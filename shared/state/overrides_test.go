package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A key that was reset starts anew although the page has a floor. Its empty record
// is not taken for an expired one, and hits from before the reset are not refunded
// from it.
func TestAResetKeepsTheFloorAway(t *testing.T) {
	for _, w := range []limit.Window{
		aligned(3, anHour, 0), perKey(3, anHour), slidingLog(3, anHour), slidingCounter(3, anHour), tokenBucket(3, 1, anHour),
	} {
		d := newDesk(t, 1, w)
		require.True(t, hit(t, d.table, []byte("a"), d.now, 2))
		var old Entry
		require.True(t, hitInto(t, d.table, &old, []byte("b"), d.now, 1), "a is evicted")
		d.reset("b")
		require.Equal(t, []uint32{0}, used(t, d.table, []byte("b"), d.now))
		require.True(t, d.table.floorLives(&d.entry, d.now))
		require.False(t, d.table.Refund(&old, d.now, 1), "counted before the reset")
		freed, status := d.table.Clean(&d.entry, d.table.def.Windows, d.now)
		require.Equal(t, OK, status)
		require.Zero(t, freed, "the empty record is not an expired one")
		require.True(t, hit(t, d.table, []byte("b"), d.now, 3))
		require.False(t, hit(t, d.table, []byte("b"), d.now, 1))
	}
}

// inConfig returns the table of a configuration, and a key in it that has limits
// of its own unless own is nil.
func inConfig(store Store, configuredNs int64, rule limit.Window, own *limit.Window) (*Table, Key) {
	windows := []limit.Window{rule}
	key := Key{Bytes: []byte("k"), Windows: windows, Rule: windows}
	if own != nil {
		key.Windows = []limit.Window{*own}
		key.Rule = Overridden(windows, []Override{{Keys: "k", Windows: key.Windows}})
	}
	return configured(store, "o", configuredNs, definition("x", 1, windows...)), key
}

// admit hits the key, one unit at a time, until it is denied or maxHits were
// admitted, and returns how many were.
func admit(t *testing.T, table *Table, key Key, now int64, maxHits int) (admitted int) {
	var e Entry
	for ; admitted < maxHits; admitted++ {
		require.Equal(t, OK, table.Read(&e, key, now))
		if table.Check(&e, 1) != e.Now {
			return admitted
		}
		require.Equal(t, OK, table.Commit(&e, 1, true))
	}
	return admitted
}

// evict makes another key take the only slot.
func evict(t *testing.T, table *Table, rule []limit.Window, other string, now int64) {
	var e Entry
	require.Equal(t, OK, table.Read(&e, Key{Bytes: []byte(other), Windows: rule, Rule: rule}, now))
	require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true))
}

// While the overrides stay the same, an evicted key has exactly what it had.
func TestAnOverrideThatStaysIsExact(t *testing.T) {
	rule, own := tokenBucket(10, 10, second), tokenBucket(100, 1, second)
	store, now := newMemory(), 1000*second
	table, key := inConfig(store, 1, rule, &own)
	require.Equal(t, 60, admit(t, table, key, now, 60))
	evict(t, table, key.Rule, "other", now)
	table, key = inConfig(store, 2, rule, &own)
	require.Equal(t, 39, admit(t, table, key, now, 100), "its bucket is full up to 4 µs later than it was")
	var e Entry
	require.Equal(t, OK, table.Read(&e, key, now))
	require.Less(t, table.Check(&e, 1), now+10_000)
}

// Different sets of overrides have different stamps.
func TestStampsOfOverridesDiffer(t *testing.T) {
	rule := []limit.Window{aligned(5, second, 0), tokenBucket(4, 2, second)}
	own := func(burst, requests uint32) []limit.Window {
		return []limit.Window{aligned(9, second, 0), tokenBucket(burst, requests, second)}
	}
	seen := make(map[uint16]string)
	for name, overrides := range map[string][]Override{
		"none":         nil,
		"one":          {{"a", own(4, 1)}},
		"another key":  {{"b", own(4, 1)}},
		"another rate": {{"a", own(4, 3)}},
		"two":          {{"a", own(4, 1)}, {"b", own(4, 3)}},
		"turned":       {{"b", own(4, 3)}, {"a", own(4, 1)}},
		"unlimited":    {{"a", nil}, {"b", own(4, 3)}},
	} {
		windows := Overridden(rule, overrides)
		require.Zero(t, windows[0].Stamp, name)
		stamp := windows[1].Stamp
		require.NotContains(t, seen, stamp, name)
		seen[stamp] = name
		require.Equal(t, Overridden(rule, overrides), windows, fmt.Sprint(name, " again"))
		require.Equal(t, len(overrides) == 0, stamp == 0, name)
		require.Zero(t, rule[1].Stamp, "the rule's own windows stay as they are")
	}
	require.Equal(t, 40*second, Overridden(rule, []Override{{"a", own(4, 1)}, {"b", own(40, 1)}, {"c", own(4, 0)}})[1].FillNs)
	require.Zero(t, Overridden(rule, []Override{{"a", rule}})[1].Stamp, "the rule's own limits")
	require.Zero(t, Overridden(rule, []Override{{"a", nil}})[1].Stamp, "no limits")
}

// Why a policy's token bucket takes no limit from the request. A bucket that is half full is
// full in 30 s whatever its limit, and a page's floor knows no more of a key than that. So
// when the key comes back after its eviction with ten times the number, it has 50 tokens,
// where its record would have had the 5 that were left: 45 are refunded.
func TestABucketWhoseNumberGrowsGetsTokensBackByEviction(t *testing.T) {
	for _, evicted := range []bool{false, true} {
		store, now := newMemory(), 2000*second
		small, large := tokenBucket(10, 10, 60*second), tokenBucket(100, 100, 60*second)
		table, key := inConfig(store, 1, small, nil)
		require.Equal(t, 5, admit(t, table, key, now, 5))
		if evicted {
			evict(t, table, key.Rule, "other", now)
		}
		key.Windows = []limit.Window{large}
		require.Equal(t, map[bool]int{false: 5, true: 50}[evicted], admit(t, table, key, now, 100))
	}
}
