package quotaservice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestBlock: the denial by a window begins it, in the same swap, and nothing else does.
func TestBlock(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(3, minute), limit.NewBlock(hour, false))
	p, q := b.proxy(b.service, d, define(2, quota.LeaseOff, fixed(1, minute))), b.proxy(b.another(0), d)
	gate, inspect := quota.Part{Definition: 2, Cost: 1}, quota.Part{Definition: 1, Inspect: true}
	shadow := want(4)
	shadow.Shadow = true
	free := []quota.Standing{{ResetNs: minute}, {}}
	require.Equal(t, free, p.ask(want(0)).Grants[0].Windows)
	require.Positive(t, p.ask(want(0)).Grants[0].ValidNs, "a request that costs nothing takes it")
	require.Equal(t, quota.Granted, p.ask(want(3), gate).Outcome)
	require.Equal(t, quota.Denied, p.ask(shadow, gate).Outcome)
	require.EqualValues(t, 0, p.ask(inspect).Grants[0].Windows[1].Used, "the other part denies, and this one is in shadow")

	swaps := b.store.swaps.Load()
	begun := quota.Grant{
		Denied: true, WaitNs: hour, Windows: []quota.Standing{{Used: 3, ResetNs: minute}, {Used: 1, ResetNs: hour}},
	}
	require.Equal(t, begun, p.ask(want(1), gate).Grants[0])
	require.EqualValues(t, 2, b.store.swaps.Load()-swaps, "one of each key")
	b.clock.advance(minute)
	blocked := quota.Grant{
		Denied: true, Blocked: true, WaitNs: hour - minute,
		Windows: []quota.Standing{{ResetNs: minute}, {Used: 1, ResetNs: hour - minute}},
	}
	require.Equal(t, blocked, q.ask(want(1)).Grants[0])
	require.Equal(t, blocked, q.ask(want(0)).Grants[0], "whatever it costs")
	require.Equal(t, blocked.Windows, q.ask(inspect).Grants[0].Windows)
	b.clock.advance(hour - minute - 1)
	require.Equal(t, quota.Denied, p.ask(want(1)).Outcome)
	b.clock.advance(1)
	require.Equal(t, quota.Granted, q.ask(want(3)).Outcome)

	shadow.NoBlock = true
	require.True(t, p.ask(shadow).Grants[0].Denied)
	require.Zero(t, p.ask(inspect).Grants[0].Windows[1].Used, "it is a trial beside a rule that enforces")
	shadow.NoBlock = false
	require.Equal(t, quota.Granted, p.ask(shadow).Outcome)
	require.EqualValues(t, hour, p.ask(inspect).Grants[0].Windows[1].ResetNs, "what is denied in shadow blocks too")
}

// TestABlockThatEachDenialProlongs begins anew, but not by what costs nothing, or is in shadow beside a denied part.
func TestABlockThatEachDenialProlongs(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(3, minute), limit.NewBlock(hour, true))
	p := b.proxy(b.service, d, define(2, quota.LeaseOff, fixed(0, minute)))
	left := func() int64 { return p.ask(quota.Part{Definition: 1, Inspect: true}).Grants[0].Windows[1].ResetNs }
	p.ask(want(4))
	b.clock.advance(minute)
	shadow := want(1)
	shadow.Shadow = true
	p.ask(want(0))
	p.ask(shadow, quota.Part{Definition: 2, Cost: 1})
	require.EqualValues(t, hour-minute, left())
	p.ask(shadow)
	require.EqualValues(t, hour, left())
	b.clock.advance(minute)
	require.Equal(t, int64(hour), p.ask(want(1)).Grants[0].WaitNs)
}

// TestAUnitThatGoesBackBlocksNobody: another part of its ask is denied. In between, another request finds the unit.
func TestAUnitThatGoesBackBlocksNobody(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(1, minute), limit.NewBlock(hour, false))
	p, q := b.proxy(b.service, d, define(2, quota.LeaseOff, fixed(1, minute))), b.proxy(b.another(0), d)
	gate := quota.Part{Definition: 2, Cost: 1}
	p.ask(gate)
	before := b.store.swaps.Load()
	require.Equal(t, quota.Denied, p.ask(want(1), gate).Outcome)
	require.EqualValues(t, 2, b.store.swaps.Load()-before, "a look at each key, and no unit to take back")
	swaps, other := 0, quota.Outcome(0)
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
		if swaps++; swaps == 2 {
			other = q.ask(want(1)).Outcome
		}
		return false
	}
	a := p.ask(want(1), gate)
	require.Equal(t, quota.Denied, a.Outcome)
	require.True(t, a.Grants[1].Denied)
	require.Equal(t, quota.Granted, other)
}

// TestWhatIsHeldBlocksNobody: neither what the rule's own requests hold, nor what those of another policy do.
func TestWhatIsHeldBlocksNobody(t *testing.T) {
	b := old(t)
	x := b.holder(1, fixed(3, minute), limit.NewBlock(hour, false), slots(0))
	other := b.proxy(b.service, define(1, quota.LeaseOff, fixed(3, minute), limit.NewBlock(hour, false)))
	require.EqualValues(t, 3, x.report(3).Units)
	g := x.report(1)
	require.True(t, g.Denied && g.HeldBack && !g.Blocked)
	require.Equal(t, limit.HeldRetryNs, other.ask(want(1)).Grants[0].WaitNs)
	x.Settle(1, 0)
	require.EqualValues(t, 1, x.report(1).Units)
	x.Settle(3, 3)
	g = x.report(1)
	require.True(t, g.Denied && !g.HeldBack && !g.Blocked && g.Noted, "%+v", g)
	require.Equal(t, []quota.Standing{{Used: 3, ResetNs: minute}, {Used: 1, ResetNs: hour}, {}}, g.Windows)
	b.clock.advance(minute)
	require.True(t, x.report(1).Blocked)
	require.True(t, x.report(0).Blocked, "also what costs nothing")
	require.Equal(t, quota.Denied, other.ask(want(1)).Outcome)
}

// TestADenialInShadowIsNoted: the report beside a denial that begins a block counts.
func TestADenialInShadowIsNoted(t *testing.T) {
	b := old(t)
	x := b.holder(1, fixed(3, minute), limit.NewBlock(hour, false), slots(0))
	x.report(3)
	x.Settle(3, 3)
	x.number++
	p := want(1)
	p.Shadow, p.Report = true, x.NewReport(1, x.number, 0)
	a := x.ask(p)
	require.Equal(t, quota.Granted, a.Outcome)
	g := a.Grants[0]
	require.True(t, g.Denied && g.Noted && !g.HeldBack && !g.Blocked, "%+v", g)
	require.EqualValues(t, hour, g.Windows[1].ResetNs)
}

// TestOperationsOnABlock: reset lifts it, set and inc do not, and a hit begins it as a request does.
func TestOperationsOnABlock(t *testing.T) {
	for _, more := range [][]limit.Window{nil, {slots(0)}} {
		b := old(t)
		d := define(1, quota.LeaseOff, append([]limit.Window{fixed(3, minute), limit.NewBlock(hour, false)}, more...)...)
		do := func(what action.Action) action.Outcome {
			found, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, what)
			require.NoError(t, err)
			return found
		}
		require.False(t, do(hit(3)).Denied)
		require.True(t, do(&action.Inspect{Units: 1}).Denied)
		require.Zero(t, do(&action.Inspect{}).Standings[1].Used, "a look begins nothing")
		found := do(hit(1))
		require.True(t, found.Denied && !found.Blocked)
		require.EqualValues(t, hour, found.WaitNs)
		do(&action.Set{Window: action.AllWindows})
		require.EqualValues(t, 1, do(&action.Inc{Units: 1, Window: action.AllWindows}).Standings[0].Used)
		found = do(&action.Inspect{})
		require.True(t, found.Denied && found.Blocked, "%+v", found)
		require.True(t, do(&action.Reset{}).HadUsage)
		require.False(t, do(hit(3)).Denied)
	}
}

// TestBlocksOfAPolicy: the service refuses what no policy may say.
func TestBlocksOfAPolicy(t *testing.T) {
	block := func(change func(w *limit.Window)) limit.Window {
		w := limit.NewBlock(hour, false)
		change(&w)
		return w
	}
	long := func(periodNs int64) []limit.Window {
		return []limit.Window{fixed(3, minute), limit.NewBlock(periodNs, false)}
	}
	count, hour1 := fixed(3, minute), limit.NewBlock(hour, false)
	for name, c := range map[string]struct {
		windows []limit.Window
		lease   uint32
		ok      bool
	}{
		"shortest":            {long(limit.MinBlockNs), 0, true},
		"longest":             {long(limit.MaxBlockNs), 0, true},
		"too short":           {long(limit.MinBlockNs - 1), 0, false},
		"too long":            {long(limit.MaxBlockNs + 1), 0, false},
		"two":                 {[]limit.Window{count, hour1, block(func(w *limit.Window) { w.Elastic = true })}, 0, false},
		"nothing counts":      {[]limit.Window{hour1}, 0, false},
		"only slots":          {[]limit.Window{hour1, slots(3)}, 0, false},
		"before windows":      {[]limit.Window{hour1, count}, 0, false},
		"leases":              {[]limit.Window{count, hour1}, quota.LeaseAuto, false},
		"another limit":       {[]limit.Window{count, block(func(w *limit.Window) { w.Limit = 2 })}, 0, false},
		"unlimited":           {[]limit.Window{count, unlimited(hour1)}, 0, false},
		"an offset":           {[]limit.Window{count, block(func(w *limit.Window) { w.OffsetNs = 1 })}, 0, false},
		"beside what is held": {[]limit.Window{count, hour1, slots(0)}, 0, true},
	} {
		b := old(t)
		outcome := b.proxy(b.service, define(1, c.lease, c.windows...)).ask(want(0)).Outcome
		require.Equal(t, c.ok, outcome == quota.Granted || outcome == quota.Unavailable, name)
	}
}
