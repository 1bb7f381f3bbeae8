package balance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// base is a Thursday's midnight; all grids of whole seconds have a start there.
const base = 1_700_006_400 * second

const minute = 60 * second

func fixed(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: period}
}

func perKey(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: n, PeriodNs: period}
}

func counter(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowCounter, Limit: n, PeriodNs: period}
}

func logOf(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowLog, Limit: n, PeriodNs: period, Units: uint16(n)}
}

func bucket(n uint32, period int64, burst uint32) limit.Window {
	return limit.Window{Algorithm: limit.TokenBucket, Limit: n, PeriodNs: period, Burst: burst}
}

func jittered(n uint32, period int64, percent uint8) limit.Window {
	w := fixed(n, period)
	w.Jitter = percent
	return quota.Shifted(w, quota.KeyOf(12345678901, 0))
}

func unlimited(period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, PeriodNs: period, Unlimited: true}
}

// at returns a key that has used n units of its windows at the instant.
func at(now int64, used uint32, windows ...limit.Window) *View {
	v := &View{record: NewRecord(now, windows...), Windows: windows}
	if used > 0 {
		v.Add(used)
	}
	return v
}

// opened returns a key whose own window is open, with a unit used.
func opened(w limit.Window, endNs int64) *View {
	v := at(base, 0, w)
	v.record.Usages[0].Usage = limit.Usage{Used: 1, EndNs: endNs}
	return v
}

func TestSlackFollowsTheWindows(t *testing.T) {
	for _, c := range []struct {
		name    string
		windows []limit.Window
		slack   int64
	}{
		{"a minute", []limit.Window{fixed(9, 60*second)}, 5 * ms},
		{"a day", []limit.Window{fixed(9, 86400*second)}, 5 * ms},
		{"20 ms", []limit.Window{fixed(9, 20*ms)}, ms},
		{"the shortest", []limit.Window{fixed(9, second), counter(9, 3600*second)}, 5 * ms},
		{"a log", []limit.Window{logOf(9, 60*second)}, 5 * ms},
		{"a bucket", []limit.Window{bucket(10, second, 100)}, 5 * ms},
	} {
		require.Equal(t, c.slack, SlackNs(c.windows), c.name)
	}
}

func TestLeaseEndsWithTheFirstWindow(t *testing.T) {
	for _, c := range []struct {
		name  string
		view  *View
		lease uint32
		endNs int64 // 0 = nothing is leased
		valid int64
	}{
		{"off", at(base, 0, fixed(100, minute)), quota.LeaseOff, 0, 100 * ms},
		{"off, a short window", at(base, 0, fixed(100, 200*ms)), quota.LeaseOff, 0, 20 * ms},
		{"10 s at most", at(base, 0, fixed(100, minute)), quota.LeaseAuto, base + 10*second, 9995 * ms},
		{"until the window ends", at(base+55*second, 0, fixed(100, minute)), 7, base + minute, 4995 * ms},
		{"a quarter is left", at(base, 75, fixed(100, minute)), quota.LeaseAuto, base + 10*second, 9995 * ms},
		{"less than a quarter is left", at(base, 76, fixed(100, minute)), quota.LeaseAuto, base + 100*ms, 95 * ms},
		{"of a counter", at(base, 76, counter(100, minute)), quota.LeaseAuto, base + 100*ms, 95 * ms},
		{"until a counter's period ends", at(base+55*second, 0, counter(100, minute)), quota.LeaseAuto,
			base + minute, 4995 * ms},
		{"an open window of a key", opened(perKey(100, minute), base+3*second), quota.LeaseAuto, base + 3*second, 2995 * ms},
		{"a window that would open", at(base, 0, perKey(100, second)), quota.LeaseAuto, base + second, 995 * ms},
		{"one that slides", at(base, 0, limit.Window{
			Algorithm: limit.FixedWindowPerKey, Limit: 9, PeriodNs: minute, Elastic: true,
		}), quota.LeaseAuto, 0, 100 * ms},
		{"the shortest of several", at(base+58*second, 0, fixed(100, minute), bucket(100, second, 5000)), quota.LeaseAuto,
			base + 58*second + 500*ms, 495 * ms},
		{"a hundredth of a log's span", at(base, 0, logOf(100, minute)), quota.LeaseAuto, base + 600*ms, 595 * ms},
		{"a log of 9 s", at(base, 0, logOf(100, 9*second)), quota.LeaseAuto, 0, 100 * ms},
		{"a bucket that fills in 100 ms", at(base, 0, bucket(1000, second, 100)), quota.LeaseAuto, 0, 100 * ms},
		{"a bucket that never fills", at(base, 0, bucket(0, second, 100)), quota.LeaseAuto, 0, 100 * ms},
		{"just before", at(base+minute-5*ms-1, 0, fixed(100, minute)), quota.LeaseAuto, base + minute, 1},
		{"no lease, spent in its window", at(base+minute-50*ms, 0, fixed(100, minute)), quota.LeaseOff, 0, 45 * ms},
		{"no lease, never too late", at(base+minute-5*ms, 0, fixed(100, minute)), quota.LeaseOff, 0, 1},
	} {
		got := c.view.OfferLease(c.lease, &quota.Part{})
		if c.endNs == 0 {
			c.endNs = c.view.record.NowNs
		}
		require.Equal(t, Offer{Verdict: Passes, SpendByNs: c.endNs}, got, c.name)
		require.Equal(t, c.valid, c.view.ValidNs(got.SpendByNs), c.name)
	}
	soon := at(base+minute-5*ms, 0, fixed(100, minute))
	require.Equal(t, Offer{Verdict: NotYet}, soon.OfferLease(quota.LeaseAuto, &quota.Part{}), "it ends within the slack")
	require.Equal(t, base+minute, soon.FirstEndNs())
}

func TestGrantIsWhatWaitsAndSomeAhead(t *testing.T) {
	ask := func(cost, waiting, ahead uint32) quota.Part {
		return quota.Part{Cost: cost, Waiting: waiting, Ahead: ahead}
	}
	for _, c := range []struct {
		name  string
		view  *View
		lease uint32
		part  quota.Part
		units uint32
		ok    bool
	}{
		{"what waits", at(base, 0, fixed(100, minute)), quota.LeaseAuto, ask(1, 7, 0), 7, true},
		{"as far as it is left", at(base, 95, fixed(100, minute)), quota.LeaseAuto, ask(1, 7, 0), 5, true},
		{"not less than the cost", at(base, 95, fixed(100, minute)), quota.LeaseAuto, ask(6, 7, 0), 0, false},
		{"nothing is left", at(base, 100, fixed(100, minute)), quota.LeaseAuto, ask(1, 1, 50), 0, false},
		{"a cost of 0 passes", at(base, 100, fixed(100, minute)), quota.LeaseAuto, ask(0, 0, 50), 0, true},
		{"ahead", at(base, 0, fixed(100, minute)), quota.LeaseAuto, ask(1, 4, 10), 14, true},
		{"a quarter of what is left after", at(base, 0, fixed(100, minute)), quota.LeaseAuto, ask(1, 4, 1000), 28, true},
		{"16 left: ahead", at(base, 84, fixed(100, minute)), quota.LeaseAuto, ask(0, 0, 1000), 4, true},
		{"15 left: nothing ahead", at(base, 85, fixed(100, minute)), quota.LeaseAuto, ask(0, 0, 1000), 0, true},
		{"a lease of at most 3", at(base, 0, fixed(100, minute)), 3, ask(1, 4, 1000), 7, true},
		{"no lease", at(base, 0, fixed(100, minute)), quota.LeaseOff, ask(1, 4, 1000), 4, true},
		{"the last 99 ms of a minute: a sixtieth of six seconds' need", at(base+minute-99*ms, 0, fixed(100, minute)),
			quota.LeaseAuto, ask(1, 1, 1000), 1 + 16, true},
		{"the last 60 ms of a second: six tenths", at(base+second-60*ms, 0, fixed(100, second)),
			quota.LeaseAuto, ask(1, 1, 10), 1 + 6, true},
		{"the last 100 ms of a second: all", at(base+second-100*ms, 0, fixed(100, second)),
			quota.LeaseAuto, ask(1, 1, 10), 1 + 10, true},
		{"a hundredth of a log is less than 100 ms", at(base, 0, logOf(100, second)),
			quota.LeaseAuto, ask(1, 1, 1000), 1, true},
		{"the least of several windows", at(base, 60, fixed(100, minute), fixed(80, 2*minute)),
			quota.LeaseAuto, ask(1, 4, 1000), 8, true},
		{"an unlimited window", at(base, 60, fixed(100, minute), unlimited(2*minute)),
			quota.LeaseAuto, ask(1, 4, 1000), 13, true},
		{"most ahead", at(0, 0, fixed(1<<32-1, minute)), quota.LeaseAuto, ask(0, 0, 1<<32-1), 1<<30 - 1, true},
		{"a window shorter than a lease", at(0, 0, fixed(1000, 50*ms)), quota.LeaseAuto, ask(1, 1, 10), 11, true},
		{"a limit of 0", at(base, 0, fixed(0, minute)), quota.LeaseAuto, ask(1, 1, 0), 0, false},
		{"a bucket keeps back its gain until the lease ends", at(base, 0, bucket(100, second, 1000)),
			quota.LeaseAuto, ask(1, 2000, 0), 990, true},
		{"all of a bucket, without a lease", at(base, 0, bucket(100, second, 1000)),
			quota.LeaseAuto, ask(1000, 1000, 0), 1000, true},
		{"more than a bucket", at(base, 0, bucket(100, second, 1000)), quota.LeaseAuto, ask(1001, 1001, 0), 0, false},
	} {
		d := c.view.OfferLease(c.lease, &c.part)
		require.Equal(t, c.ok, d.Verdict == Passes, c.name)
		require.Equal(t, c.units, d.Units, c.name)
	}
}

// TestWaitEndsInTime: after the wait the cost passes, and a millisecond before it does not.
func TestWaitEndsInTime(t *testing.T) {
	leased := at(base, 0, bucket(100, second, 1000))
	leased.Take(985, base+100*ms)
	few := at(base, 0, bucket(100, second, 1000))
	few.Take(2, base+100*ms)
	uneven := at(base, 8, bucket(3, second, 9))
	uneven.record.Roll(base + 500*ms)
	uneven.Take(1, base+1400*ms)
	for name, c := range map[string]struct {
		view *View
		cost uint32
	}{
		"fixed":                         {at(base+second, 100, fixed(100, 60*second)), 1},
		"per key":                       {at(base+second, 100, perKey(100, 60*second)), 1},
		"counter":                       {at(base+second, 100, counter(100, 60*second)), 30},
		"log":                           {at(base+second, 100, logOf(100, 60*second)), 30},
		"bucket":                        {at(base+second, 990, bucket(100, second, 1000)), 30},
		"a bucket with a lease":         {leased, 30},
		"before a bucket's lease ends":  {leased, 10},
		"a bucket with a lease, wholly": {leased, 1000},
		"nearly all of a bucket":        {few, 995},
		"with parts of tokens":          {uneven, 3},
	} {
		wait := c.view.WaitNs(c.cost)
		require.Positive(t, wait, name)
		passes := func(after int64) bool {
			v := copyOf(c.view)
			v.record.Roll(v.record.NowNs + after)
			isLeft := v.Left(v.record.NowNs) >= c.cost
			require.Equal(t, isLeft, v.WaitNs(c.cost) == 0, name)
			return isLeft
		}
		require.True(t, passes(wait), name)
		require.False(t, passes(wait-ms), name)
	}
	require.Equal(t, limit.Never, at(base, 0, fixed(100, second)).WaitNs(101))
}

func TestStandingSaysUseAndReset(t *testing.T) {
	leased := at(base, 0, bucket(100, second, 1000))
	leased.Take(30, base+100*ms) // stands as if they were spent when the lease ends
	for _, c := range []struct {
		view *View
		want quota.Standing
	}{
		{at(base+second, 30, fixed(100, 60*second)), quota.Standing{Used: 30, ResetNs: 59 * second}},
		{at(base+second, 30, logOf(100, 60*second)), quota.Standing{Used: 30, ResetNs: 60 * second}},
		{at(base, 30, bucket(100, second, 1000)), quota.Standing{Used: 30, ResetNs: 300 * ms}},
		{leased, quota.Standing{Used: 40, ResetNs: 400 * ms}},
	} {
		require.Equal(t, c.want, c.view.Standing(0), "%+v", c.view.Windows)
	}
}

// shapes are the mixes of windows of the tests below.
var shapes = map[string][]limit.Window{
	"fixed":             {fixed(60, 20*second)},
	"fixed, jittered":   {jittered(60, 20*second, 50)},
	"per key":           {perKey(60, 11*second)},
	"per key, short":    {perKey(40, 2*second)},
	"counter":           {counter(60, 12*second)},
	"log":               {logOf(60, 20*second)},
	"log, short":        {logOf(30, second)},
	"bucket":            {bucket(600, minute, 400)},
	"bucket, short":     {bucket(30, second, 20)},
	"layered":           {fixed(50, 5*second), bucket(8, second, 120), logOf(300, 40*second)},
	"layered, per key":  {perKey(30, 2*second), counter(100, 20*second)},
	"layered, one free": {unlimited(second), logOf(60, 20*second)},
}

// TestLateReturnLeavesTheNextWindow: units of a window that has ended leave the next one alone.
func TestLateReturnLeavesTheNextWindow(t *testing.T) {
	for name, windows := range shapes {
		v := at(base, 0, windows...)
		c := v.Take(5, base)
		v.record.Roll(base + 2*minute)
		v.Add(7)
		before := v.Left(v.record.NowNs)
		_, changed := v.Return(&c, 5)
		require.False(t, changed, name)
		require.Equal(t, before, v.Left(v.record.NowNs), name)
	}
}

// TestWhatIsHeldIsNotGranted: workers hold 3 of 10 units, by another policy. A lease takes none of them either.
func TestWhatIsHeldIsNotGranted(t *testing.T) {
	for _, lease := range []uint32{quota.LeaseOff, quota.LeaseAuto} {
		v := at(base, 0, fixed(10, minute))
		v.record.Holders = Holders{{Worker: 1, Held: 3, NotedNs: base, HoldNs: holdNs}}
		require.EqualValues(t, 10, v.UnusedIn(0))
		require.EqualValues(t, 7, v.Left(base))
		require.Equal(t, TooFew, v.OfferLease(lease, &quota.Part{Cost: 8, Waiting: 8}).Verdict)
		d := v.OfferLease(lease, &quota.Part{Cost: 1, Waiting: 9})
		require.Equal(t, Passes, d.Verdict)
		require.EqualValues(t, 7, d.Units)
	}
}
