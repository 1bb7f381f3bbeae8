package quotaservice

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const hour = 3600 * second

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

// each has every algorithm.
func each(n uint32, period int64) map[string]limit.Window {
	return map[string]limit.Window{
		"fixed": fixed(n, period), "per key": perKey(n, period), "counter": counter(n, period),
		"log": logOf(n, period), "bucket": bucket(n, period, n),
	}
}

// asking is a proxy whose rule has these windows.
func (b *rig) asking(windows ...limit.Window) *proxy {
	return b.proxy(b.service, define(1, quota.LeaseOff, windows...))
}

func (p *proxy) used() (used []uint32) {
	for _, w := range p.ask(quota.Part{Definition: 1, Inspect: true}).Grants[0].Windows {
		used = append(used, w.Used)
	}
	return used
}

// TestTwoPoliciesInTurn: each policy keeps its limit. In one proxy each has a table of its own and so admits 10.
func TestTwoPoliciesInTurn(t *testing.T) {
	b := newRig(t)
	proxies := [2]*proxy{b.asking(fixed(10, hour)), b.asking(fixed(10, 2*hour))}
	admitted := [2]int{}
	for i := range 120 {
		if proxies[i%2].ask(want(1)).Outcome == quota.Granted {
			admitted[i%2]++
		}
	}
	require.Equal(t, [2]int{10, 10}, admitted)
}

// TestANewWindow begins empty, but a bucket with what one of its period lacks.
func TestANewWindow(t *testing.T) {
	for _, c := range []struct {
		old   limit.Window
		used  uint32
		fresh limit.Window
		want  uint32
	}{
		{fixed(10, hour), 6, fixed(3, hour), 6},
		{fixed(10, hour), 6, fixed(10, 2*hour), 0},
		{bucket(10, hour, 10), 7, bucket(5, hour, 5), 2},
		{bucket(10, hour, 10), 7, bucket(20, hour, 20), 17},
		{bucket(10, hour, 10), 7, bucket(20, 2*hour, 20), 0},
	} {
		b := newRig(t)
		require.Equal(t, quota.Granted, b.asking(c.old).ask(want(c.used)).Outcome)
		require.Equal(t, []uint32{c.want}, b.asking(c.fresh).used(), "%+v", c)
	}
}

// TestOthersWindowsGoOn: while another definition is asked for all the time, a window is
// rolled and refilled as if it were alone, what it granted comes back, and a lease of
// the other's does not hold it up.
func TestOthersWindowsGoOn(t *testing.T) {
	endsSoon := limit.NewCalendar(1, (base+10*second)%(24*hour), 0)
	endsSoon.Limit = 10
	for name, w := range map[string]limit.Window{
		"fixed": fixed(10, 10*second), "month": endsSoon, "per key": perKey(10, 10*second), "counter": counter(10, 10*second),
		"log": logOf(10, 10*second), "bucket": bucket(10, 10*second, 10),
	} {
		theirs := logOf(500, 24*hour)
		if w.Algorithm == theirs.Algorithm {
			theirs = bucket(500, 24*hour, 500)
		}
		alone, beside := newRig(t), newRig(t)
		other := beside.proxy(beside.service, define(1, quota.LeaseAuto, theirs))
		mine := [2]*proxy{alone.asking(w), beside.asking(w)}
		for step := range 400 {
			other.ask(want(1))
			var got [2]quota.AskResult
			for i, p := range mine {
				got[i] = p.ask(want(2))
				if step%7 == 0 && got[i].Grants[0].Number > 0 {
					p.giveBack(got[i].Grants[0].Number, 1)
				}
			}
			require.Equal(t, got[0], got[1], "%s, step %d", name, step)
			alone.clock.advance(100 * ms)
			beside.clock.advance(100 * ms)
		}
	}
}

// TestTheSeventeenthWindow: a key counts in 16 windows. What asks for one more is
// refused and logged; the others go on, and a window that ends makes room.
func TestTheSeventeenthWindow(t *testing.T) {
	b := old(t)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s, err := NewService(t.Context(), Options{Store: b.store, Clock: b.clock, Log: logger})
	require.NoError(t, err)
	b.service = s
	asking := func(n int) *proxy { return b.asking(perKey(10, hour+int64(n)*second)) }
	for n := range quota.MaxWindows {
		require.Equal(t, quota.Granted, asking(n).ask(want(1)).Outcome)
	}
	require.Equal(t, quota.Unavailable, asking(16).ask(want(1)).Outcome)
	require.Equal(t, quota.Granted, asking(15).ask(want(1)).Outcome)
	require.EqualValues(t, 1, s.metrics.crowded.Load())
	require.Regexp(t, `^time=\S+ level=WARN msg="ask refused" address=test domain=d `+
		`error="the key counts in 16 windows of other definitions: `+
		`more are refused until one of them ends"\n$`, log.String())
	inShadow := want(1)
	inShadow.Shadow = true
	require.True(t, asking(16).ask(inShadow).Grants[0].Failed)

	b.clock.advance(hour)
	require.Equal(t, quota.Granted, asking(16).ask(want(1)).Outcome)
	require.Equal(t, quota.Unavailable, asking(17).ask(want(1)).Outcome)
	d := define(1, quota.LeaseOff, perKey(10, 17*second))
	found, err := s.Operate(t.Context(), "d", d, [16]byte{}, &action.Reset{})
	require.NoError(t, err)
	require.True(t, found.HadUsage, "of other definitions")
	require.Equal(t, quota.Granted, asking(17).ask(want(10)).Outcome, "reset has forgotten every window")
}

// TestARecordIsRebasedOnce: also by an ask that it has no room for.
func TestARecordIsRebasedOnce(t *testing.T) {
	b := newRig(t)
	for n := range quota.MaxWindows {
		b.asking(perKey(10, hour+int64(n)*second)).ask(want(1))
	}
	b.clock.now -= minute
	refused := b.asking(perKey(10, day))
	for range 3 {
		require.Equal(t, quota.Unavailable, refused.ask(want(1)).Outcome)
		require.EqualValues(t, 1, b.service.metrics.rebased.Load())
	}
}

// TestNoMessageLowersACount: whatever a proxy of the domain sends, what another has used
// stays used.
func TestNoMessageLowersACount(t *testing.T) {
	spent := func(p *proxy) { p.ask(quota.Part{Definition: 1, Uncharged: 1}) }
	takeAndReturn := func(p *proxy) {
		g := p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 1<<32 - 1}).Grants[0]
		p.giveBack(g.Number, g.Units)
	}
	short := logOf(10, hour)
	short.Units = 1
	for _, c := range []struct {
		name    string
		honest  limit.Window
		hostile []limit.Window
		send    func(p *proxy)
	}{
		{"other windows", fixed(10, hour), []limit.Window{counter(10, hour)}, spent},
		{"a window that ends at once", fixed(10, hour), []limit.Window{perKey(1, ms)}, spent},
		{"a log that remembers one unit", logOf(10, hour), []limit.Window{short}, spent},
		{"a bucket that is refilled at once", bucket(10, hour, 10), []limit.Window{bucket(1<<32-1, hour, 1<<32-1)}, spent},
		{"an empty bucket", bucket(10, hour, 10), []limit.Window{bucket(0, hour, 0)}, spent},
		{"units beyond what is counted", fixed(10, hour), []limit.Window{unlimited(fixed(0, hour))}, takeAndReturn},
		{"the same of a counter", counter(10, hour), []limit.Window{unlimited(counter(0, hour))}, takeAndReturn},
		{"the same of a log", logOf(10, hour), []limit.Window{unlimited(logOf(10, hour))}, takeAndReturn},
		{"the same of a key's own window", perKey(10, hour), []limit.Window{unlimited(perKey(0, hour))}, takeAndReturn},
		{"an unlimited bucket", bucket(10, hour, 10), []limit.Window{unlimited(bucket(10, hour, 10))}, func(p *proxy) {
			require.Equal(t, quota.Unknown, p.ask(want(1)).Outcome)
		}},
	} {
		b := newRig(t)
		honest := b.asking(c.honest)
		honest.ask(want(8))
		hostile := b.asking(c.hostile...)
		for range 3 {
			c.send(hostile)
			b.clock.advance(second)
		}
		require.GreaterOrEqual(t, honest.used()[0], uint32(8), c.name)
		require.Equal(t, quota.Denied, honest.ask(want(3)).Outcome, c.name)
	}
}

func unlimited(w limit.Window) limit.Window {
	w.Unlimited = true
	return w
}

// TestClaimedUnitsAreBounded: what a proxy says that it has admitted, or denied, counts as the
// limit at most. So a wrong number locks a key no longer than its windows last.
func TestClaimedUnitsAreBounded(t *testing.T) {
	const all = 1<<32 - 1
	for _, c := range []struct {
		name    string
		window  limit.Window
		part    quota.Part
		used    uint32
		longest int64 // until a unit passes
	}{
		{"spent, fixed", fixed(10, minute), quota.Part{Cost: 1, Uncharged: all}, 15, minute},
		{"spent, counter", counter(10, minute), quota.Part{Cost: 1, Uncharged: all}, 15, 2 * minute},
		{"spent, log", logOf(10, minute), quota.Part{Cost: 1, Uncharged: all}, 15, minute},
		{"spent, bucket", bucket(10, minute, 10), quota.Part{Cost: 1, Uncharged: all}, 15, 2 * minute},
		{"denied, fixed", fixed(10, minute), quota.Part{Cost: all, Waiting: all}, 15, minute},
		{"denied, counter", counter(10, minute), quota.Part{Cost: all, Waiting: all}, 15, 2 * minute},
		{"denied, log", logOf(10, minute), quota.Part{Cost: 1, Waiting: all, Uncharged: 5}, 10, minute},
		{"denied, what it needs", counter(10, minute), quota.Part{Cost: 6, Waiting: 9}, 14, 2 * minute},
	} {
		b := newRig(t)
		b.asking(c.window).ask(want(5))
		d := define(1, quota.LeaseOff, c.window)
		d.CountDenied = c.window.Algorithm != limit.TokenBucket && c.part.Uncharged == 0
		p := b.proxy(b.service, d)
		c.part.Definition = 1
		p.ask(c.part)
		require.Equal(t, []uint32{c.used}, p.used(), c.name)
		for range 3 { // no bucket owes more than it holds when full
			p.ask(quota.Part{Definition: 1, Uncharged: c.part.Uncharged, Inspect: true})
		}
		g := p.ask(quota.Part{Definition: 1, Cost: 1}).Grants[0]
		require.LessOrEqual(t, g.WaitNs, c.longest+c.longest/10, c.name)
	}
}
