package balance

import (
	"flag"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var histories = flag.Int("histories", 60, "how many random histories each shape of windows goes through")

var heldShapes = map[string][]limit.Window{
	"no windows": {},
	"fixed":      {fixed(10, 4*second)},
	"jittered":   {jittered(10, 4*second, 50)},
	"per key":    {perKey(10, 3*second)},
	"counter":    {counter(12, 4*second)},
	"log":        {logOf(10, 5*second)},
	"bucket":     {bucket(40, 20*second, 10)},
	"layered":    {fixed(6, second), logOf(12, 6*second)},
}

// TestHoldsNeverOver: whatever becomes of messages, workers and the store, no more runs than may,
// no window is charged more than its limit if nothing costs more than it held, and every answer
// is charged once.
func TestHoldsNeverOver(t *testing.T) {
	runs := *histories
	if testing.Short() {
		runs /= 10
	}
	for name, windows := range heldShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			granted := 0
			for seed := range uint64(runs) {
				hold := limit.Window{Algorithm: limit.Concurrency, Limit: 10, Unlimited: len(windows) > 0}
				hold.PeriodNs = []int64{holdNs, longHoldNs}[seed%7/4]
				h := newHoldModel(seed, hold, windows...)
				for range 1500 {
					h.step(t)
				}
				granted += h.granted
				if h.lostNs != 0 {
					continue
				}
				require.Empty(t, h.over(), "seed %d", seed)
				if h.lied > 0 {
					h.record.Roll(h.record.NowNs + h.holdNs())
					require.LessOrEqual(t, h.WaitNs(1), limit.MaxPeriodNs, "seed %d", seed)
					h.record.Roll(h.record.NowNs + limit.MaxPeriodNs)
					require.Equal(t, Passes, h.OfferNow(1, 1).Verdict, "seed %d: the key is locked for longer", seed)
				}
				if h.killed+h.lied > 0 {
					continue
				}
				h.end()
				require.Zero(t, h.record.Holders.Held(), "seed %d: something is held for ever", seed)
				require.Equal(t, h.charged, uint64(h.record.Usages[len(h.record.Usages)-1].Used), "seed %d", seed)
			}
			require.Greater(t, granted, runs*30, "too little was granted to prove anything")
		})
	}
}

// TestADebtOutlivesASilentWorker: two workers hold 5 units each of 10 a minute. One settles with 100, and the other
// falls silent, so its 5 are charged on top: they take a minute more than the 100.
func TestADebtOutlivesASilentWorker(t *testing.T) {
	w := fixed(10, minute)
	w.Pays = 10
	v := at(0, 0, w)
	v.HoldLimit = &limit.Window{PeriodNs: holdNs, Unlimited: true}
	for _, r := range []quota.Report{
		{Worker: 1, Held: 5, Since: 1, Number: 1}, {Worker: 2, Held: 5, Since: 2, Number: 2},
		{Worker: 1, Charged: 100, Since: 1, Number: 3},
	} {
		_, _, err := v.Note(&quota.Part{Report: r})
		require.NoError(t, err)
	}
	require.Equal(t, 11*minute, v.record.ExpiryNs())
	v.record.Roll(11*minute - 1)
	require.EqualValues(t, 5, v.record.Usages[0].Used)
	v.record.Roll(11 * minute)
	require.True(t, v.record.Usages[0].IsZero())
}

// TestNothingCountsFromExpiryOn: whatever workers have charged and hold, also more than the limit together, as after
// the limit was lowered. If there is one worker, something counts or is held until then: no key stays in the store for
// longer.
func TestNothingCountsFromExpiryOn(t *testing.T) {
	isEmpty := func(s *Record) bool {
		isUsed := func(u Usage) bool { return !u.IsZero() }
		return len(s.Holders) == 0 && !slices.ContainsFunc(s.Usages, isUsed)
	}
	for name, windows := range heldShapes {
		for seed := range uint64(*histories) {
			slots := limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Unlimited: true}
			h := newHoldModel(seed, slots, windows...)
			h.Windows = h.Windows[:len(windows)] // without the model's total, which counts for a year
			h.record.Windows, h.record.Usages = h.Windows, h.record.Usages[:len(windows)]
			workers := 1 + 3*(seed%2)
			charged, owes := make([]uint64, workers), false
			for number := range uint64(100) {
				h.record.Roll(h.record.NowNs + h.r.Int64N(4*second))
				worker := h.r.Uint64N(workers)
				charged[worker] += h.r.Uint64N([]uint64{1, 10, 200}[h.r.IntN(3)])
				_, _, err := h.Note(&quota.Part{Cost: h.r.Uint32N(3), Report: quota.Report{
					Worker: worker, Held: h.r.Uint32N(12), Charged: charged[worker], Since: 1, Number: number + 1,
				}})
				require.NoError(t, err)
				owes = owes || len(windows) > 0 && h.WaitNs(1) > 0
				s, expiry := h.record.Clone(), h.record.ExpiryNs()
				s.Roll(expiry - 2) // a bucket's is even
				require.False(t, workers == 1 && isEmpty(s), "%s, seed %d: it expires too late", name, seed)
				s.Roll(expiry)
				require.True(t, isEmpty(s), "%s, seed %d: it expires too early: %+v", name, seed, s)
			}
			require.Equal(t, len(windows) > 0, owes, "%s, seed %d: no window was ever full", name, seed)
		}
	}
}

// TestExpiryOfASlowBucketIsFarAhead: it gains 1 token a year, and whole limits of it are owed and held.
func TestExpiryOfASlowBucketIsFarAhead(t *testing.T) {
	v := at(base, saturated, bucket(1, limit.MaxPeriodNs, saturated/2))
	v.record.Holders = Holders{{Worker: 1, Held: saturated, NotedNs: base, HoldNs: holdNs}}
	require.Greater(t, v.record.ExpiryNs(), base+limit.MaxFillNs)
}

// copyOf returns a copy that can be rolled beside v.
func copyOf(v *View) *View {
	c := *v
	c.record = v.record.Clone()
	return &c
}

// TestReportsSaturate: no sum of what workers report wraps around.
func TestReportsSaturate(t *testing.T) {
	v := at(base, 0, fixed(100, second))
	v.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 5}
	v.record.Holders = Holders{
		{Worker: 1, Held: saturated, NotedNs: v.record.NowNs, HoldNs: holdNs},
		{Worker: 2, Held: 5, NotedNs: v.record.NowNs, HoldNs: holdNs},
	}
	_, offer, err := v.Note(&quota.Part{Cost: 1, Waiting: 1, Report: quota.Report{Worker: 1, Number: 1}})
	require.NoError(t, err)
	require.Equal(t, TooFew, offer.Verdict, "the other has all 5")
	for _, c := range []struct {
		report quota.Report
		used   int
	}{
		{quota.Report{Worker: 1, Number: 2, Since: 2, Known: 9}, 0},
		{quota.Report{Worker: 1, Number: 3, Since: 2, Charged: 4}, 4},
		{quota.Report{Worker: 1, Number: 4, Since: 2, Charged: 3}, 4},
	} {
		_, _, err = v.Note(&quota.Part{Report: c.report})
		require.NoError(t, err)
		require.EqualValues(t, c.used, v.record.Usages[0].Used)
	}
	var a quota.Sums
	a.Hold(1)
	require.Equal(t, uint32(saturated), a.NewReport(1, 1, saturated).Held)
	a.NoteGrant(1, 1)
	require.True(t, a.Changed())
}

// TestABlockBoundsNoHold: its limit is none of units. A store that has lost its state believes what a worker holds.
func TestABlockBoundsNoHold(t *testing.T) {
	v := at(base, 0, fixed(5, second), limit.NewBlock(second, false))
	v.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Unlimited: true}
	_, _, err := v.Note(&quota.Part{Report: quota.Report{Worker: 1, Since: 1, Number: 1, Held: 4}})
	require.NoError(t, err)
	require.EqualValues(t, 4, v.record.Holders.Held())
}

// TestHolderOfNothingIsNoted: no older report counts after it. A denial leaves no holder.
func TestHolderOfNothingIsNoted(t *testing.T) {
	v := at(base, 0)
	v.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 5}
	note := func(cost uint32, r quota.Report) (bool, error) {
		isKept, _, err := v.Note(&quota.Part{Cost: cost, Waiting: cost, Report: r})
		return isKept, err
	}
	for i, c := range []struct {
		cost   uint32
		report quota.Report
		isKept bool
	}{
		{6, quota.Report{Worker: 1, Since: 3, Number: 3}, false},
		{0, quota.Report{Worker: 1, Since: 3, Number: 3}, true},
		{6, quota.Report{Worker: 2, Since: 2, Number: 3}, true}, // 2 may be under way
	} {
		isKept, err := note(c.cost, c.report)
		require.NoError(t, err)
		require.Equal(t, c.isKept, isKept, i)
	}
	for worker := range uint64(2) {
		_, err := note(0, quota.Report{Worker: worker + 1, Number: 2, Held: 3})
		require.ErrorIs(t, err, ErrStale)
	}
}

// TestAWorkerIsBelievedToHoldALimit: or what its holder has already, by a larger limit.
func TestAWorkerIsBelievedToHoldALimit(t *testing.T) {
	for _, c := range []struct{ before, reports, held uint32 }{
		{0, 5, 5},
		{0, 50, 6},
		{8, 50, 8},
		{8, 7, 7},
	} {
		v := at(base, 0, fixed(6, minute))
		v.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 10}
		if c.before > 0 {
			v.record.Holders = Holders{{Worker: 1, Number: 1, Since: 1, Held: c.before, NotedNs: base, HoldNs: holdNs}}
		}
		_, _, err := v.Note(&quota.Part{Report: quota.Report{Worker: 1, Since: 1, Number: 2, Held: c.reports}})
		require.NoError(t, err)
		require.Equal(t, c.held, v.record.Holders.Held(), "%+v", c)
	}
}

// TestAHolderOfNothingGoesSoon: after a minute, or with its hold if that is shorter. One that has charged something
// stays for its hold.
func TestAHolderOfNothingGoesSoon(t *testing.T) {
	for _, c := range []struct {
		held    uint32
		charged uint64
		hold    int64
		after   int64
	}{
		{0, 0, holdNs, holdNs},
		{0, 0, 60 * minute, minute},
		{0, 1, 60 * minute, 60 * minute},
		{1, 0, 60 * minute, 60 * minute},
	} {
		v := at(base, 0)
		v.record.Holders = Holders{{Worker: 1, Held: c.held, Charged: c.charged, NotedNs: base, HoldNs: c.hold}}
		require.Equal(t, base+c.after, v.record.ExpiryNs())
		v.record.Roll(base + c.after - 1)
		require.Len(t, v.record.Holders, 1, "%+v", c)
		v.record.Roll(base + c.after)
		require.Empty(t, v.record.Holders, "%+v", c)
	}
}

// TestWhatIsReportedTwiceCountsOnce: a worker reports what an answer has cost, the store's answer to that is lost, and
// the worker is silent for a while. Then it reports the cost again. Only after a whole hold it counts twice: the worker
// counts as gone by then.
func TestWhatIsReportedTwiceCountsOnce(t *testing.T) {
	const hold = 10 * minute
	for _, c := range []struct {
		silentNs int64
		used     uint32
	}{
		{second, 1},
		{minute, 1}, // as long as a holder stays that has charged nothing
		{hold - 1, 1},
		{hold, 2},
	} {
		v := at(base, 0, fixed(10, 60*minute))
		v.HoldLimit = &limit.Window{Algorithm: limit.Concurrency, PeriodNs: hold, Unlimited: true}
		var worker quota.Sums
		worker.Settle(0, 1)
		report := func(number uint64) {
			_, _, err := v.Note(&quota.Part{Report: worker.NewReport(1, number, 0)})
			require.NoError(t, err)
		}
		report(7)
		v.record.Roll(base + c.silentNs)
		report(8)
		require.Equal(t, c.used, v.record.Usages[0].Used, "silent for %d s", c.silentNs/second)
	}
}

// TestAHolderOfNothingMakesRoom: the one of them that ends first, for the worker that would be one too many. One that
// has charged something ends later.
func TestAHolderOfNothingMakesRoom(t *testing.T) {
	var hs Holders
	for worker := range uint64(MaxHolders) {
		h, err := hs.findOrAdd(worker)
		require.NoError(t, err)
		h.Held = 1
		h.NotedNs, h.HoldNs = base+int64(worker), 10*minute
	}
	_, err := hs.findOrAdd(MaxHolders)
	require.ErrorIs(t, err, ErrHolders)
	hs.find(8).Held, hs.find(5).Held = 0, 0
	hs.find(3).Held, hs.find(3).Charged = 0, 1
	_, err = hs.findOrAdd(MaxHolders)
	require.NoError(t, err)
	require.Len(t, hs, MaxHolders)
	require.Nil(t, hs.find(5))
	require.NotNil(t, hs.find(8))
	require.NotNil(t, hs.find(3))
}

// TestASilentWorkerIsChargedInTheKeysOwnWindow: the window of a key with jitter ends later than the policy's, as a
// Record has it. What a silent worker held counts until then, whether the window is open already or not.
func TestASilentWorkerIsChargedInTheKeysOwnWindow(t *testing.T) {
	policys := fixed(10, 60*minute)
	policys.Jitter = 50
	own := quota.Shifted(policys, quota.KeyOf(uint64(20*minute), 0))
	end := base + 20*minute
	for _, before := range []uint32{0, 3} {
		v := View{record: NewRecord(end-25*minute, policys), Windows: []limit.Window{own}}
		v.HoldLimit = &limit.Window{PeriodNs: 10 * second, Unlimited: true}
		if before > 0 {
			v.Add(before)
		}
		_, offer, err := v.Note(&quota.Part{Cost: 4, Waiting: 4, Report: quota.Report{Worker: 1, Since: 1, Number: 1}})
		require.NoError(t, err)
		require.EqualValues(t, 4, offer.Units)
		v.record.Roll(end - 1)
		require.Zero(t, v.record.Holders.Held(), "it is silent")
		require.Equal(t, 10-before-4, v.Left(end-1), "%d before: the key's own window has not ended", before)
	}
}
