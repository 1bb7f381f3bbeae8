package quotaservice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestOperate: what operators do to a key, one step after the other.
func TestOperate(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseAuto, fixed(10, minute))
	p, others := b.proxy(b.service, d), b.asking(perKey(10, hour))
	p.ask(want(6))
	others.ask(want(4))
	for _, step := range []struct {
		what   action.Action
		denied bool
		used   uint32
	}{
		{what: &action.Inspect{Units: 4}, used: 6},
		{what: &action.Inspect{Units: 5}, used: 6, denied: true},
		{what: hit(5), used: 6, denied: true},
		{what: hit(4), used: 10},
		{what: &action.Inc{Units: 5, Window: action.AllWindows}, used: 15},
		{what: hit(0), used: 15},
		{what: &action.Set{Units: 9, Window: action.AllWindows}, used: 9},
		{what: &action.Set{Units: 8, Window: 0}, used: 8},
		{what: &action.Inc{Units: 1, Window: 0}, used: 9},
	} {
		found, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, step.what)
		require.NoError(t, err)
		require.Equal(t, base+b.clock.now, found.NowNs)
		require.Equal(t, step.denied, found.Denied, "%+v", step)
		if step.denied {
			require.EqualValues(t, minute, found.WaitNs)
		}
		require.Equal(t, []quota.Standing{{Used: step.used, ResetNs: minute}}, found.Standings, "%+v", step)
	}
	require.Equal(t, quota.Denied, p.ask(want(2)).Outcome)
	require.Equal(t, []uint32{4}, others.used(), "another definition's window")
	found, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, &action.Reset{})
	require.NoError(t, err)
	require.True(t, found.HadUsage)
	require.Zero(t, found.Standings[0].Used)
	require.Zero(t, others.used()[0], "reset forgets them all")
	found, err = b.service.Operate(t.Context(), "d", d, [16]byte{}, &action.Reset{})
	require.NoError(t, err)
	require.False(t, found.HadUsage)
	require.Equal(t, quota.Granted, p.ask(want(10)).Outcome)
	require.True(t, b.service.WasAsked())
	ofBucket := define(2, quota.LeaseAuto, bucket(10, minute, 10))
	found, err = b.service.Operate(t.Context(), "d", ofBucket, [16]byte{}, hit(4))
	require.NoError(t, err)
	require.EqualValues(t, 4, found.Standings[0].Used, "nothing is held back as for a lease")
	require.False(t, newRig(t).service.WasAsked())
}

// TestOperateOnOneWindow: the others stay, of every algorithm, and no return uncounts
// what was set since its grant.
func TestOperateOnOneWindow(t *testing.T) {
	for _, a := range limit.Counting {
		one := limit.Window{Algorithm: a, Limit: 10, PeriodNs: 1000 * second, Burst: 10, Units: 10}
		if a == limit.Calendar {
			one.PeriodNs = limit.MonthNs
		}
		b := newRig(t)
		d := define(1, quota.LeaseAuto, fixed(20, minute), one)
		p := b.proxy(b.service, d)
		grant := p.ask(want(6)).Grants[0].Number
		used := func(what action.Action) []uint32 {
			found, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, what)
			require.NoError(t, err)
			return []uint32{found.Standings[0].Used, found.Standings[1].Used}
		}
		require.EqualValues(t, 6, used(&action.Inspect{})[0])
		require.Equal(t, []uint32{6, 3}, used(&action.Set{Units: 3, Window: 1}), "algorithm %d", a)
		require.Equal(t, []uint32{6, 5}, used(&action.Inc{Units: 2, Window: 1}), "algorithm %d", a)
		p.giveBack(grant, 6)
		require.Equal(t, []uint32{6, 5}, used(&action.Inspect{}), "algorithm %d", a)
		require.Equal(t, []uint32{2, 5}, used(&action.Set{Units: 2, Window: 0}), "algorithm %d", a)
	}
}

// TestSetOfALeasedBucket: while a lease of a bucket lasts, set makes the usage what it says, by the window's index
// as for all windows.
func TestSetOfALeasedBucket(t *testing.T) {
	for _, window := range []int{action.AllWindows, 0} {
		b := newRig(t)
		d := define(1, quota.LeaseAuto, bucket(100, 10*second, 100))
		asked := want(6)
		asked.Ahead = 50
		require.True(t, b.proxy(b.service, d).ask(asked).Grants[0].Leased)
		set := &action.Set{Units: 5, Window: window}
		for _, what := range []action.Action{set, &action.Inspect{}} {
			found, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, what)
			require.NoError(t, err)
			require.EqualValues(t, 5, found.Standings[0].Used, "%+v after set of window %d", what, window)
		}
	}
}
