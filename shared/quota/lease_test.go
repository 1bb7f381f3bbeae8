package quota

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	return Shifted(w, KeyOf(12345678901, 0))
}

func unlimited(period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, PeriodNs: period, Unlimited: true}
}

// at returns a key that has used n units of its windows at the instant.
func at(now int64, used uint32, windows ...limit.Window) *State {
	s := NewState(now, windows)
	if used > 0 {
		s.Add(used, Unleased)
	}
	return &s
}

func TestTimesFollowTheWindows(t *testing.T) {
	for _, c := range []struct {
		name                 string
		windows              []limit.Window
		slack, horizon, idle int64
	}{
		{"a minute", []limit.Window{fixed(9, 60*second)}, 5 * ms, 6 * second, 3 * second},
		{"a day", []limit.Window{fixed(9, 86400*second)}, 5 * ms, 10 * second, 10 * second},
		{"20 ms", []limit.Window{fixed(9, 20*ms)}, ms, 2 * ms, ms},
		{"the shortest", []limit.Window{fixed(9, second), counter(9, 3600*second)}, 5 * ms, 100 * ms, 50 * ms},
		{"no longer than a log's lease", []limit.Window{logOf(9, 60*second)}, 5 * ms, 600 * ms, 3 * second},
		{"no longer than a bucket's", []limit.Window{bucket(10, second, 100)}, 5 * ms, 100 * ms, 50 * ms},
	} {
		require.Equal(t, c.slack, SlackNs(c.windows), c.name)
		require.Equal(t, c.horizon, HorizonNs(c.windows), c.name)
		require.Equal(t, c.idle, IdleNs(c.windows), c.name)
	}
}

func TestLeaseEndsWithTheFirstWindow(t *testing.T) {
	for _, c := range []struct {
		name  string
		state *State
		lease uint32
		want  Terms
		valid int64
	}{
		{"off", at(base, 0, fixed(100, minute)), LeaseOff, Unleased, 100 * ms},
		{"off, a short window", at(base, 0, fixed(100, 200*ms)), LeaseOff, Unleased, 20 * ms},
		{"10 s at most", at(base, 0, fixed(100, minute)), LeaseAuto, Terms{EndNs: base + 10*second}, 9995 * ms},
		{"until the window ends", at(base+55*second, 0, fixed(100, minute)), 7, Terms{EndNs: base + minute}, 4995 * ms},
		{"a quarter is left", at(base, 75, fixed(100, minute)), LeaseAuto, Terms{EndNs: base + 10*second}, 9995 * ms},
		{"less than a quarter is left", at(base, 76, fixed(100, minute)), LeaseAuto, Terms{EndNs: base + 100*ms}, 95 * ms},
		{"of a counter", at(base, 76, counter(100, minute)), LeaseAuto, Terms{EndNs: base + 100*ms}, 95 * ms},
		{"until a counter's period ends", at(base+55*second, 0, counter(100, minute)), LeaseAuto,
			Terms{EndNs: base + minute}, 4995 * ms},
		{"an open window of a key", &State{
			NowNs: base, bucketAsOfNs: []int64{base}, Windows: []limit.Window{perKey(100, minute)},
			Usages: []limit.Usage{{Used: 1, EndNs: base + 3*second}},
		}, LeaseAuto, Terms{EndNs: base + 3*second}, 2995 * ms},
		{"a window that would open", at(base, 0, perKey(100, second)), LeaseAuto, Terms{EndNs: base + second}, 995 * ms},
		{"one that slides", at(base, 0, limit.Window{
			Algorithm: limit.FixedWindowPerKey, Limit: 9, PeriodNs: minute, Elastic: true,
		}), LeaseAuto, Unleased, 100 * ms},
		{"the shortest of several", at(base+58*second, 0, fixed(100, minute), bucket(100, second, 5000)), LeaseAuto,
			Terms{EndNs: base + 58*second + 500*ms}, 495 * ms},
		{"a hundredth of a log's span", at(base, 0, logOf(100, minute)), LeaseAuto, Terms{EndNs: base + 600*ms}, 595 * ms},
		{"a log of 9 s", at(base, 0, logOf(100, 9*second)), LeaseAuto, Unleased, 100 * ms},
		{"a bucket that fills in 100 ms", at(base, 0, bucket(1000, second, 100)), LeaseAuto, Unleased, 100 * ms},
		{"a bucket that never fills", at(base, 0, bucket(0, second, 100)), LeaseAuto, Unleased, 100 * ms},
		{"the window ends within the slack", at(base+minute-5*ms, 0, fixed(100, minute)), LeaseAuto,
			Terms{AgainNs: base + minute}, 0},
		{"just before", at(base+minute-5*ms-1, 0, fixed(100, minute)), LeaseAuto, Terms{EndNs: base + minute}, 1},
		{"no lease, spent in its window", at(base+minute-50*ms, 0, fixed(100, minute)), LeaseOff, Unleased, 45 * ms},
		{"no lease, never too late", at(base+minute-5*ms, 0, fixed(100, minute)), LeaseOff, Unleased, 1},
	} {
		got := c.state.terms(c.lease)
		require.Equal(t, c.want, got, c.name)
		if got.AgainNs == 0 {
			require.Equal(t, c.valid, c.state.ValidNs(got), c.name)
		}
	}
}

func TestGrantIsWhatWaitsAndSomeAhead(t *testing.T) {
	ask := func(cost, waiting, ahead uint32) Part { return Part{Cost: cost, Waiting: waiting, Ahead: ahead} }
	for _, c := range []struct {
		name  string
		state *State
		lease uint32
		part  Part
		units uint32
		ok    bool
	}{
		{"what waits", at(base, 0, fixed(100, minute)), LeaseAuto, ask(1, 7, 0), 7, true},
		{"as far as it is left", at(base, 95, fixed(100, minute)), LeaseAuto, ask(1, 7, 0), 5, true},
		{"not less than the cost", at(base, 95, fixed(100, minute)), LeaseAuto, ask(6, 7, 0), 0, false},
		{"nothing is left", at(base, 100, fixed(100, minute)), LeaseAuto, ask(1, 1, 50), 0, false},
		{"a cost of 0 passes", at(base, 100, fixed(100, minute)), LeaseAuto, ask(0, 0, 50), 0, true},
		{"ahead", at(base, 0, fixed(100, minute)), LeaseAuto, ask(1, 4, 10), 14, true},
		{"a quarter of what is left after", at(base, 0, fixed(100, minute)), LeaseAuto, ask(1, 4, 1000), 28, true},
		{"16 left: ahead", at(base, 84, fixed(100, minute)), LeaseAuto, ask(0, 0, 1000), 4, true},
		{"15 left: nothing ahead", at(base, 85, fixed(100, minute)), LeaseAuto, ask(0, 0, 1000), 0, true},
		{"a lease of at most 3", at(base, 0, fixed(100, minute)), 3, ask(1, 4, 1000), 7, true},
		{"no lease", at(base, 0, fixed(100, minute)), LeaseOff, ask(1, 4, 1000), 4, true},
		{"the last 99 ms of a minute: a sixtieth of six seconds' need", at(base+minute-99*ms, 0, fixed(100, minute)),
			LeaseAuto, ask(1, 1, 1000), 1 + 16, true},
		{"the last 60 ms of a second: six tenths", at(base+second-60*ms, 0, fixed(100, second)),
			LeaseAuto, ask(1, 1, 10), 1 + 6, true},
		{"the last 100 ms of a second: all", at(base+second-100*ms, 0, fixed(100, second)),
			LeaseAuto, ask(1, 1, 10), 1 + 10, true},
		{"a hundredth of a log is less than 100 ms", at(base, 0, logOf(100, second)), LeaseAuto, ask(1, 1, 1000), 1, true},
		{"the least of several windows", at(base, 60, fixed(100, minute), fixed(80, 2*minute)),
			LeaseAuto, ask(1, 4, 1000), 8, true},
		{"an unlimited window", at(base, 60, fixed(100, minute), unlimited(2*minute)), LeaseAuto, ask(1, 4, 1000), 13, true},
		{"most ahead", at(0, 0, fixed(1<<32-1, minute)), LeaseAuto, ask(0, 0, 1<<32-1), 1<<30 - 1, true},
		{"a window shorter than a lease", at(0, 0, fixed(1000, 50*ms)), LeaseAuto, ask(1, 1, 10), 11, true},
		{"a limit of 0", at(base, 0, fixed(0, minute)), LeaseAuto, ask(1, 1, 0), 0, false},
		{"a bucket keeps back its gain until the lease ends", at(base, 0, bucket(100, second, 1000)),
			LeaseAuto, ask(1, 2000, 0), 990, true},
		{"all of a bucket, without a lease", at(base, 0, bucket(100, second, 1000)),
			LeaseAuto, ask(1000, 1000, 0), 1000, true},
		{"more than a bucket", at(base, 0, bucket(100, second, 1000)), LeaseAuto, ask(1001, 1001, 0), 0, false},
	} {
		decision, units, _ := c.state.Decide(c.lease, &c.part)
		require.Equal(t, c.ok, decision == Passes, c.name)
		require.Equal(t, c.units, units, c.name)
	}
}

// TestWaitEndsInTime: after the wait the cost passes, and a millisecond before it does not.
func TestWaitEndsInTime(t *testing.T) {
	leased := at(base, 0, bucket(100, second, 1000))
	leased.Add(985, leased.terms(LeaseAuto))
	for name, c := range map[string]struct {
		state *State
		cost  uint32
	}{
		"fixed":                         {at(base+second, 100, fixed(100, 60*second)), 1},
		"per key":                       {at(base+second, 100, perKey(100, 60*second)), 1},
		"counter":                       {at(base+second, 100, counter(100, 60*second)), 30},
		"log":                           {at(base+second, 100, logOf(100, 60*second)), 30},
		"bucket":                        {at(base+second, 990, bucket(100, second, 1000)), 30},
		"a bucket with a lease":         {leased, 30},
		"before a bucket's lease ends":  {leased, 10},
		"a bucket with a lease, wholly": {leased, 1000},
	} {
		wait := c.state.WaitNs(c.cost)
		require.Positive(t, wait, name)
		passes := func(after int64) bool {
			s := *c.state
			s.Usages, s.bucketAsOfNs = slices.Clone(s.Usages), slices.Clone(s.bucketAsOfNs)
			s.Roll(s.NowNs + after)
			return s.Left(Unleased) >= c.cost
		}
		require.True(t, passes(wait), name)
		require.False(t, passes(wait-ms), name)
	}
	require.Equal(t, limit.Never, at(base, 0, fixed(100, second)).WaitNs(101))
}

func TestStandingSaysUseAndReset(t *testing.T) {
	require.Equal(t, Standing{Used: 30, ResetNs: 59 * second}, standing(at(base+second, 30, fixed(100, 60*second))))
	require.Equal(t, Standing{Used: 30, ResetNs: 60 * second}, standing(at(base+second, 30, logOf(100, 60*second))))
	require.Equal(t, Standing{Used: 30, ResetNs: 300 * ms}, standing(at(base, 30, bucket(100, second, 1000))))
	leased := at(base, 0, bucket(100, second, 1000))
	leased.Add(30, leased.terms(LeaseAuto)) // stands as if they were spent when the lease ends, in 100 ms
	require.Equal(t, Standing{Used: 40, ResetNs: 400 * ms}, standing(leased))
}

func standing(s *State) Standing { return s.StandingOf(0) }

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

// TestLateRefundLeavesTheNextWindow: units of a window that has ended leave the next one alone.
func TestLateRefundLeavesTheNextWindow(t *testing.T) {
	for name, windows := range shapes {
		s := at(base, 0, windows...)
		c := s.Add(5, Unleased)
		s.Roll(base + 2*minute)
		s.Add(7, Unleased)
		before := s.Left(Unleased)
		s.Refund(&c, 5)
		require.Equal(t, before, s.Left(Unleased), name)
	}
}
