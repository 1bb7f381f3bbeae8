package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// fullShare returns the share of new keys that meet a full page in a table at
// capacity: while the table fills, and later with keys coming and going. A key
// lives for one window, and one new key comes each millisecond, so that capacity
// keys are live.
func fullShare(t *testing.T, slots uint8, capacity uint32) (filling, steady float64) {
	life := int64(capacity) * ms
	windows := map[uint8][]limit.Window{
		32: {perKey(5, life)},
		16: {perKey(5, life), perKey(5, life+1), perKey(5, life+2), perKey(5, life+3), perKey(5, life+4)},
		8:  {slidingLog(60, life)},
		4:  {slidingLog(150, life)},
	}[slots]
	table := newTable(capacity, windows...)
	require.Equal(t, slots, page.GeometryFor(windows, capacity).Slots)
	var e Entry
	newcomers := func(from, to int) float64 {
		full := 0
		for n := from; n < to; n++ {
			require.Equal(t, OK, table.Read(&e, keyed(table, numbered(n)), int64(1+n)*ms))
			switch status := table.Commit(&e, 1, false); status {
			case Full:
				full++
			default:
				require.Equal(t, OK, status)
			}
		}
		return float64(full) / float64(to-from)
	}
	n := int(capacity)
	filling = newcomers(0, n)
	newcomers(n, 2*n)
	return filling, newcomers(2*n, max(8*n, 10_000))
}

func TestFewNewKeysMeetAFullPage(t *testing.T) {
	for _, c := range []struct {
		slots    uint8
		capacity uint32
	}{
		{32, 33}, {32, 44}, {32, 224}, {32, 2240}, {32, 20_000}, {16, 17}, {16, 200}, {16, 2000}, {16, 20_000},
		{8, 9}, {8, 100}, {8, 1000}, {8, 5000}, {4, 5}, {4, 50}, {4, 500}, {4, 5000},
	} {
		if testing.Short() && c.capacity > 1000 {
			continue
		}
		filling, steady := fullShare(t, c.slots, c.capacity)
		require.Less(t, filling, 0.02, "%+v", c)
		require.Less(t, steady, 0.02, "%+v", c)
		t.Logf("%d slots, capacity %d: %.2f %% while it fills, %.2f %% with keys coming and going",
			c.slots, c.capacity, 100*filling, 100*steady)
	}
}

// A key that was reset starts anew although the page has a floor. Its empty record
// is not taken for an expired one, and hits from before the reset are not refunded
// from it.
func TestAResetKeepsTheFloorAway(t *testing.T) {
	for _, w := range []limit.Window{
		aligned(3, anHour, 0), perKey(3, anHour),
		slidingLog(3, anHour), slidingCounter(3, anHour), tokenBucket(3, 1, anHour),
	} {
		d := newDesk(t, 1, w)
		require.True(t, hit(t, d.table, []byte("a"), d.now, 2))
		var old Entry
		require.True(t, hitInto(t, d.table, &old, []byte("b"), d.now, 1), "a is evicted")
		d.reset("b")
		require.Equal(t, []uint32{0}, used(t, d.table, []byte("b"), d.now))
		require.True(t, d.entry.floorLives())
		require.False(t, d.table.Refund(&old, keyed(d.table, []byte("b")).Limits, d.now, 1), "counted before the reset")
		freed, status := d.table.Clean(&d.scratch, d.table.def.Windows, d.now)
		require.Equal(t, OK, status)
		require.Zero(t, freed, "the empty record is not an expired one")
		require.True(t, hit(t, d.table, []byte("b"), d.now, 3))
		require.False(t, hit(t, d.table, []byte("b"), d.now, 1))
		d.reset("b") // there is something to reset again
	}
}

// A stream from before the reset that has nothing to charge does not take away that the key was reset.
func TestAKeyStaysResetIfAnOldStreamChargesNothing(t *testing.T) {
	evictA := func(d *desk) { require.True(t, hit(t, d.table, []byte("c"), d.now, 2)) }
	for name, c := range map[string]struct {
		between func(d *desk) // hold and reset
		lapsed  bool
		cost    uint32
	}{
		"what it held went with the reset":    {func(*desk) {}, false, 0},
		"its hold had lapsed, and was dearer": {func(d *desk) { d.pass(90 * second) }, true, 1},
		"the floor still holds for it":        {evictA, false, 0},
	} {
		d := newDesk(t, 1, aligned(5, anHour, 0), holding())
		require.True(t, hit(t, d.table, []byte("b"), d.now, 3))
		h, ok := d.hold("a", 1) // evicts b
		require.True(t, ok, name)
		c.between(d)
		d.read("a")
		_, status := d.table.Reset(&d.entry, true)
		require.Equal(t, OK, status, name)
		require.Equal(t, c.lapsed, d.settle("a", h, c.cost), name)
		freed, status := d.table.Clean(&d.scratch, d.table.def.Windows, d.now)
		require.Equal(t, OK, status, name)
		require.Zero(t, freed, name)
		d.requireStands("a", 0, 0, name)
		require.True(t, d.entry.floorLives(), "%s: else this test could not fail", name)
	}
}

// A hit that another rule denies does not take away that the key was reset, nor does a stream that costs nothing.
func TestAKeyStaysResetIfAHitIsRefunded(t *testing.T) {
	for _, w := range []limit.Window{
		aligned(3, anHour, 0), perKey(3, anHour),
		slidingLog(3, anHour), slidingCounter(3, anHour), tokenBucket(3, 1, anHour),
	} {
		for name, undo := range map[string]func(d *desk){
			"a hit": func(d *desk) {
				require.True(t, hitInto(t, d.table, &d.entry, []byte("c"), d.now, 1))
				require.True(t, d.table.Refund(&d.entry, keyed(d.table, []byte("c")).Limits, d.now, 1))
			},
			"a hold": func(d *desk) {
				h, ok := d.hold("c", 1)
				require.True(t, ok)
				require.True(t, d.table.RefundHold(&d.entry, keyed(d.table, []byte("c")).Limits, h, d.now))
			},
		} {
			d := newDesk(t, 1, w, holding())
			require.True(t, hit(t, d.table, []byte("a"), d.now, 2))
			require.True(t, hit(t, d.table, []byte("c"), d.now, 1), "a is evicted")
			d.reset("c")
			undo(d)
			freed, status := d.table.Clean(&d.scratch, d.table.def.Windows, d.now)
			require.Equal(t, OK, status)
			require.Zero(t, freed, "%s: %v", name, w.Algorithm)
			d.requireStands("c", 0, 0, name)
			require.True(t, d.entry.floorLives(), "%s: else this test could not fail", name)
			had, status := d.table.Reset(&d.entry, true)
			require.Equal(t, OK, status)
			require.False(t, had, name)
		}
	}
}

// A worker has stood still since it read its clock, so the page of a new key has records that seem to be of the future.
// Its clock is read once more when the page is loaded. What is asked of the page then changes nothing.
func TestTheClockIsSettledWhenAPageIsLoaded(t *testing.T) {
	d := newDesk(t, 2, perKey(3, 30*second))
	require.True(t, hit(t, d.table, []byte("a"), d.now, 1))
	require.True(t, hit(t, d.table, []byte("b"), d.now+aheadNs+2*second, 1))
	clock := d.now + aheadNs + 3*second
	d.store.clock = func() int64 { return clock }

	require.Equal(t, OK, d.table.Read(&d.entry, keyed(d.table, []byte("c")), d.now))
	p := &d.entry.presentPage
	require.Equal(t, clock, p.CallerNs)
	require.Equal(t, clock, p.Now)
	before := p.page.Clone()
	clock += second
	require.Equal(t, d.now+30*second, d.entry.Earliest())
	require.Equal(t, 0, p.leastUsed(), "as much as b, and expires first")
	require.False(t, p.hasExpired(1))
	require.Equal(t, clock-second, p.CallerNs)
	require.Equal(t, before, p.page)
}

// A visit reads its clock once, and other workers count in the pages that it has not come to yet.
func TestTheClockIsSettledForEachPageOfAVisit(t *testing.T) {
	d := newDesk(t, 2, perKey(3, 5*second))
	require.True(t, hit(t, d.table, []byte("a"), d.now, 1))
	require.True(t, hit(t, d.table, []byte("b"), d.now+aheadNs+2*second, 1))
	d.store.clock = func() int64 { return d.now + aheadNs + 3*second }
	freed, status := d.table.Clean(&d.scratch, d.table.def.Windows, d.now)
	require.Equal(t, OK, status)
	require.EqualValues(t, 1, freed, "a has expired by the clock of now")
}

// As in a Read of a new key, but this one has a record. What the floor holds lapses, so the record of another key,
// which may have held it, is evicted. Its time is read for that.
func TestTheClockIsSettledBeforeTheFloorLapses(t *testing.T) {
	slots := limit.Window{Algorithm: limit.Concurrency, Limit: 100, PeriodNs: 80 * second}
	d := newDesk(t, 2, perKey(9, anHour), slots)
	begin := d.now
	_, ok := d.hold("a", 5)
	require.True(t, ok)
	require.True(t, hit(t, d.table, []byte("known"), d.now, 9))
	require.True(t, hit(t, d.table, []byte("c"), d.now, 1), "a is evicted: the floor holds its units")
	d.pass(70 * second)
	require.True(t, hit(t, d.table, []byte("sharer"), d.now, 2), "c is evicted")
	d.pass(25 * second)
	d.store.clock = func() int64 { return begin + 95*second }
	d.now = begin + 50*second // when the worker read its clock: 20 s before the sharer's hit
	d.read("known")
	require.Equal(t, d.store.clock(), d.entry.CallerNs)
	require.True(t, d.entry.HasRecord())
	require.Equal(t, OK, d.table.Commit(&d.entry, 1, false))
	d.now = d.store.clock()
	d.read("sharer")
	require.False(t, d.entry.HasRecord(), "it went into the floor")
}

// The wall clock is set back while the floor holds units. When they lapse, the record of a key that may have held them
// is evicted. What it has counted goes into the floor as of the present, though the floor was hours ahead.
func TestASharerIsNotForgottenAfterTheClockWasSetBack(t *testing.T) {
	calendar := limit.NewCalendar(1, 0, 0)
	calendar.Limit = 5
	for name, w := range map[string]limit.Window{
		"fixed_window":           aligned(5, anHour, 0),
		"calendar":               calendar,
		"fixed_window_per_key":   perKey(5, anHour),
		"sliding_window_counter": slidingCounter(5, anHour),
		"sliding_window_log":     slidingLog(5, anHour),
		"token_bucket":           tokenBucket(5, 1, anHour),
	} {
		d := newDesk(t, 1, w, holding())
		d.now = 31*24*anHour + anHour // in February
		_, ok := d.hold("x", 1)
		require.True(t, ok)
		require.True(t, hit(t, d.table, []byte("b"), d.now, 1), "evicts x, so the floor holds")
		require.True(t, hit(t, d.table, []byte("a"), d.now, 1), "evicts b, and may have held that")
		d.now -= 2 * anHour
		require.True(t, hit(t, d.table, []byte("a"), d.now, 3), name)
		require.False(t, hit(t, d.table, []byte("a"), d.now, 1), "%s: it has used 4, and a unit is held", name)
		d.pass(90 * second)
		require.False(t, hit(t, d.table, []byte("a"), d.now, 1), "%s: the unit has lapsed", name)
		d.read("a")
		require.False(t, d.entry.HasRecord(), "%s: else this test could not fail", name)
		require.True(t, d.entry.Rebased, "%s: else each denial would rebase the floor again", name)
	}
}

// As above, but only the sharer's record is ahead, and another key is denied by the floor that the record goes into.
// The denial persists that, so the next one does not move the record to its own present again.
func TestASharerIsSetBackOnce(t *testing.T) {
	d := newDesk(t, 1, perKey(5, anHour), holding())
	_, ok := d.hold("x", 1)
	require.True(t, ok)
	require.True(t, hit(t, d.table, []byte("b"), d.now, 1), "evicts x, so the floor holds")
	require.True(t, hit(t, d.table, []byte("a"), d.now, 1), "evicts b, and may have held that")
	require.True(t, hit(t, d.table, []byte("a"), d.now+2*anHour, 4))
	d.pass(90 * second)
	deny := func() (passNs int64) {
		d.read("c")
		passNs = d.table.Check(&d.entry, 1)
		require.Greater(t, passNs, d.now)
		d.table.Persist(&d.entry)
		return passNs
	}
	passNs := deny()
	require.True(t, d.entry.Rebased)
	d.pass(second)
	require.Equal(t, passNs, deny())
	require.False(t, d.entry.Rebased, "once is enough")
}

// inConfig returns the table of a configuration, and a key in it that has limits
// of its own unless own is nil.
func inConfig(store Store, configuredNs int64, rule limit.Window, own *limit.Window) (*Table, Key) {
	windows := []limit.Window{rule}
	key := Key{Bytes: []byte("k"), Limits: Limits{Windows: windows, OfRule: windows}}
	if own != nil {
		key.Windows = []limit.Window{*own}
		key.OfRule = Overridden(windows, []Override{{Keys: "k", Windows: key.Windows}})
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
	require.Equal(t, OK, table.Read(&e, Key{Bytes: []byte(other), Limits: Limits{Windows: rule, OfRule: rule}}, now))
	require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true))
}

// While the overrides stay the same, an evicted key has exactly what it had.
func TestAnOverrideThatStaysIsExact(t *testing.T) {
	rule, own := tokenBucket(10, 10, second), tokenBucket(100, 1, second)
	store, now := newMemory(), 1000*second
	table, key := inConfig(store, 1, rule, &own)
	require.Equal(t, 60, admit(t, table, key, now, 60))
	evict(t, table, key.OfRule, "other", now)
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
	slow := []Override{{"a", own(4, 1)}, {"b", own(40, 1)}, {"c", own(4, 0)}}
	require.Equal(t, 40*second, Overridden(rule, slow)[1].FillNs)
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
			evict(t, table, key.OfRule, "other", now)
		}
		key.Windows = []limit.Window{large}
		require.Equal(t, map[bool]int{false: 5, true: 50}[evicted], admit(t, table, key, now, 100))
	}
}

// bound is an upper bound of the tokens in a key's bucket, over the configurations
// since its last hit: it gains at the fastest of their rates, and once it is full
// it stays full, whatever its size becomes.
type bound struct {
	tokens float64 // at the last hit
	full   bool
	rate   float64
	at     int64
}

// update returns the tokens that the bucket may hold at now, under the limits w.
func (m *bound) update(w limit.Window, now int64) float64 {
	m.rate = max(m.rate, float64(w.Limit)/float64(w.PeriodNs))
	now += 5000 // a stamp moves a time by up to 4095 ns
	tokens := m.tokens + float64(now-m.at)*m.rate
	if w.Limit == 0 || tokens >= float64(w.Burst) { // a floor ends under limits of 0
		m.full = true
	}
	if m.full {
		return float64(w.Burst)
	}
	return tokens
}

// Random histories of a page of one or two slots and three keys. The limits of the
// keys and of the rule change at random, also to 0. No key gets more than its bound
// has, and none waits longer than twice the fill time of the slowest bucket in the
// history.
func TestRandomOverridesRefundNothingAndLockNobodyOut(t *testing.T) {
	runs := uint64(5000)
	if testing.Short() {
		runs /= 10
	}
	for seed := range runs {
		r := &bucketRun{T: t, random: rand.New(rand.NewPCG(seed, 4)), store: newMemory()}
		r.capacity = 1 + r.random.Uint32N(2)
		r.play(seed)
	}
}

type bucketRun struct {
	*testing.T
	random   *rand.Rand
	store    *memory
	capacity uint32
	table    *Table
	rule     []limit.Window
	limits   [3]limit.Window // of the keys
	known    [3]bound
	slowest  int64
}

func (r *bucketRun) some() limit.Window {
	bursts, rates := []uint32{0, 1, 4, 10, 40}, []uint32{0, 1, 2, 10}
	return tokenBucket(bursts[r.random.IntN(5)], rates[r.random.IntN(4)], second)
}

func (r *bucketRun) configure(version int64) {
	if r.rule == nil || r.random.IntN(3) == 0 {
		r.rule = []limit.Window{r.some()}
	}
	r.rule[0].Stamp, r.rule[0].FillNs = 0, 0
	var overrides []Override
	for k := range r.limits {
		r.limits[k] = r.rule[0]
		if r.random.IntN(2) == 0 {
			r.limits[k] = r.some()
			overrides = append(overrides, Override{fmt.Sprint(k), []limit.Window{r.limits[k]}})
		}
		r.slowest = max(r.slowest, r.limits[k].Fill(), r.rule[0].Fill())
	}
	r.table = configured(r.store, "o", version, definition("x", r.capacity, r.rule[0]))
	r.rule = Overridden(r.rule, overrides)
}

// pass reads the key and reports whether a hit passes.
func (r *bucketRun) passes(e *Entry, k int, now int64, cost uint32) bool {
	key := Key{Bytes: []byte{byte(k)}, Limits: Limits{Windows: r.limits[k : k+1], OfRule: r.rule}}
	require.Equal(r, OK, r.table.Read(e, key, now))
	return r.table.Check(e, cost) == e.Now
}

func (r *bucketRun) update(now int64) {
	for k := range r.known {
		r.known[k].update(r.limits[k], now)
	}
}

func (r *bucketRun) play(seed uint64) {
	now := 1000 * second
	for k := range r.known {
		r.known[k] = bound{full: true, at: now}
	}
	r.configure(1)
	var e Entry
	var scratch Scratch
	for step := range int64(60) {
		switch r.random.IntN(12) {
		case 0:
			r.update(now)
			r.configure(step + 2)
			r.update(now)
		case 1, 2:
			now += r.random.Int64N(3 * second)
		case 3:
			_, status := r.table.Clean(&scratch, r.rule, now)
			require.Equal(r, OK, status)
		default:
			k, cost := r.random.IntN(len(r.known)), 1+r.random.Uint32N(4)
			m := &r.known[k]
			holds := m.update(r.limits[k], now)
			if !r.passes(&e, k, now, cost) {
				continue
			}
			require.Equal(r, OK, r.table.Commit(&e, cost, true))
			require.GreaterOrEqual(r, holds+1e-3, float64(cost),
				"seed %d step %d key %d %+v", seed, step, k, r.limits[k])
			*m = bound{tokens: holds - float64(cost), at: now}
		}
	}
	now += 2 * r.slowest
	for k, w := range r.limits {
		never := w.Limit == 0 || w.Burst == 0
		require.True(r, never || r.passes(&e, k, now, 1),
			"seed %d: key %d %+v of rule %+v is locked out", seed, k, w, r.rule)
	}
}
