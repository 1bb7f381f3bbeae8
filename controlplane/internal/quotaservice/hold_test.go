package quotaservice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const hold = 80 * second

func slots(n uint32) limit.Window {
	return limit.Window{Algorithm: limit.Concurrency, Limit: n, PeriodNs: hold, Unlimited: n == 0}
}

// TestASmallerLimitForgetsNothing: if requests carry their limit, one with a small limit reports
// what those with a larger one hold of the key. The worker then goes on holding it all.
func TestASmallerLimitForgetsNothing(t *testing.T) {
	for name, windows := range map[string]func(n uint32) []limit.Window{
		"concurrency": func(n uint32) []limit.Window { return []limit.Window{slots(n)} },
		"settle":      func(n uint32) []limit.Window { return []limit.Window{fixed(n, minute), slots(0)} },
	} {
		t.Run(name, func(t *testing.T) {
			b := old(t)
			x, y := b.holder(1, windows(100)...), b.holder(2, windows(100)...)
			require.EqualValues(t, 100, x.report(100).Units)
			small := define(1, quota.LeaseOff, windows(1)...)
			require.NoError(t, x.send(quota.Asks{Definitions: []quota.Definition{small}}))
			require.True(t, x.report(1).Denied)
			require.True(t, y.report(1).HeldBack, "x holds 100 of 100")
			x.Settle(60, 0)
			require.True(t, x.report(1).Denied)
			require.EqualValues(t, 60, y.report(60).Units, "x holds 40")
		})
	}
}

// holder is a worker with an account of one key.
type holder struct {
	*proxy
	quota.Sums
	worker, number uint64
}

func (b *rig) holder(worker uint64, windows ...limit.Window) *holder {
	return &holder{proxy: b.proxy(b.service, define(1, quota.LeaseOff, windows...)), worker: worker}
}

// report reports the account, asks for units of it, and returns the grant.
func (h *holder) report(units uint32, others ...quota.Part) quota.Grant {
	h.number++
	p := want(units)
	p.Report = h.NewReport(h.worker, h.number, 0)
	a := h.ask(append([]quota.Part{p}, others...)...)
	if len(a.Grants) == 0 {
		return quota.Grant{Failed: true}
	}
	g := a.Grants[0]
	if !g.Noted {
		return g
	}
	if h.NoteGrant(h.number, g.Units) {
		h.Hold(g.Units)
	}
	return g
}

// old is a rig whose store has lost nothing.
func old(t *testing.T) *rig {
	b := newRig(t)
	b.memory.Aged()
	b.service = b.another(0)
	return b
}

func TestHeldCountsAgainstEachLimit(t *testing.T) {
	b := old(t)
	x, y := b.holder(1, fixed(5, minute), slots(0)), b.holder(2, fixed(5, minute), slots(0))
	require.EqualValues(t, 3, x.report(3).Units)
	g := y.report(3)
	require.True(t, g.Denied && g.HeldBack && g.Noted, "5 do not have room for 6")
	require.EqualValues(t, second, g.WaitNs)
	require.EqualValues(t, 2, y.report(2).Units)
	require.Equal(t, []quota.Standing{{Used: 0, ResetNs: minute}, {Used: 5}}, y.report(1).Windows)

	x.Settle(3, 3)
	y.Settle(2, 0)
	x.report(0)
	g = y.report(3)
	require.True(t, g.Denied && !g.HeldBack, "3 are used")
	require.EqualValues(t, minute, g.WaitNs)
	require.EqualValues(t, 2, y.report(2).Units)
	y.Settle(2, 40) // a debt of 37 beside 5: it is paid in 8 windows
	require.True(t, y.report(1).Denied)
	b.clock.advance(7 * minute)
	require.True(t, x.report(4).Denied)
	b.clock.advance(minute)
	require.True(t, x.report(3).Denied)
	require.EqualValues(t, 2, x.report(2).Units)
}

// TestPartsOfOneKeyStandByTheirOwnDefinitions: of two rules for one key, one holds units and one does not. Each part is
// answered with the standings of its own windows, and what is held with those of the first rule alone, though the units
// of the other part are taken back last.
func TestPartsOfOneKeyStandByTheirOwnDefinitions(t *testing.T) {
	bucket := limit.Window{Algorithm: limit.TokenBucket, Limit: 10, Burst: 10, PeriodNs: minute}
	b := old(t)
	counts, full := define(2, quota.LeaseOff, bucket), define(3, quota.LeaseOff, fixed(1, minute))
	counts.Counter = [16]byte{1}
	holds := b.holder(1, bucket, slots(3))
	require.NoError(t, holds.send(quota.Asks{Definitions: []quota.Definition{counts, full}}))
	held, counted := want(1), quota.Part{Definition: 2, Cost: 1}
	for name, parts := range map[string][]quota.Part{
		"the hold is undone last": {counted, held}, "the hold is undone first": {held, counted},
	} {
		for i := range parts {
			if parts[i].Definition == 1 {
				holds.number++
				parts[i].Report = holds.NewReport(holds.worker, holds.number, 0)
			}
		}
		a := holds.ask(append(parts, quota.Part{Definition: 3, Cost: 2})...)
		require.Equal(t, quota.Denied, a.Outcome, name)
		for i := range parts {
			own := map[uint32]int{1: 2, 2: 1}[parts[i].Definition]
			require.Len(t, a.Grants[i].Windows, own, "%s: part %d", name, i)
		}
	}
}

func TestConcurrencyIsOfWhatRuns(t *testing.T) {
	b := old(t)
	x, y := b.holder(1, slots(2)), b.holder(2, slots(2))
	require.EqualValues(t, 1, x.report(1).Units)
	require.EqualValues(t, 1, y.report(1).Units)
	require.True(t, x.report(1).HeldBack)
	x.Settle(1, 0)
	x.report(0)
	require.EqualValues(t, 1, y.report(1).Units)
	b.clock.advance(hold - 1)
	require.True(t, x.report(1).Denied)
	b.clock.advance(1)
	require.EqualValues(t, 2, x.report(2).Units, "y is silent")
	require.Equal(t, limit.Never, x.report(3).WaitNs)
}

// TestALostHoldIsCharged: also if nobody asks for long after its end.
func TestALostHoldIsCharged(t *testing.T) {
	b := old(t)
	x, y := b.holder(1, fixed(5, hour), slots(0)), b.holder(2, fixed(5, hour), slots(0))
	x.report(5)
	b.clock.advance(hold + 60*second)
	require.True(t, y.report(1).Denied)
}

// TestADeniedPartHoldsNothing: what the others of its ask were granted is taken back. If the store
// fails to, the worker hears that the store may have too much as held.
func TestADeniedPartHoldsNothing(t *testing.T) {
	b := old(t)
	x := b.holder(1, slots(2))
	require.NoError(t, x.send(quota.Asks{Definitions: []quota.Definition{define(2, quota.LeaseOff, fixed(0, minute))}}))
	g := x.report(2, quota.Part{Definition: 2, Cost: 1})
	require.True(t, !g.Denied && g.Noted)
	require.Zero(t, g.Units)
	require.False(t, x.Changed())
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		if len(swaps) > 1 {
			return false
		}
		done(0, swapstore.Result{Status: swapstore.Failed, Err: errContended})
		return true
	}
	require.False(t, x.report(2, quota.Part{Definition: 2, Cost: 1}).Noted)
	b.store.bend = nil
	require.EqualValues(t, 2, x.report(2).Units)
}

// TestADeniedPairOfAKey: what the first part was granted goes with the worker's next report, so it
// is not lost.
func TestADeniedPairOfAKey(t *testing.T) {
	b := old(t)
	x := b.holder(1, slots(2))
	first, second := want(2), want(1)
	first.Report, second.Report = x.NewReport(1, 1, 0), x.NewReport(1, 2, 2)
	require.Equal(t, quota.Denied, x.ask(first, second).Outcome)
	require.True(t, x.NoteGrant(2, 0))
	require.True(t, x.Changed())
	require.Zero(t, b.service.metrics.unitsLost.Load())
	x.number = 2
	require.EqualValues(t, 2, x.report(2).Units)
}

// TestLeasesBesideWhatIsHeld: while a policy that settles is rolled out, workers without it lease
// what is left.
func TestLeasesBesideWhatIsHeld(t *testing.T) {
	b := old(t)
	x, y := b.holder(1, fixed(5, minute), slots(0)), b.proxy(b.service, define(1, quota.LeaseAuto, fixed(5, minute)))
	x.report(3)
	a := y.ask(want(3))
	require.Equal(t, quota.Denied, a.Outcome)
	require.EqualValues(t, second, a.Grants[0].WaitNs)
	require.EqualValues(t, 2, y.ask(want(2)).Grants[0].Units)
}

// TestTooManyWorkers: on_contention decides.
func TestTooManyWorkers(t *testing.T) {
	b := old(t)
	for i := range uint64(balance.MaxHolders) {
		require.EqualValues(t, 1, b.holder(i+1, slots(1000)).report(1).Units)
	}
	for _, k := range b.service.core.keys.byStoreKey {
		require.Greater(t, k.idleBytes(), balance.MaxHolders*holderBytes, "the cache is bounded in bytes")
	}
	last := b.holder(1000, slots(1000))
	part := want(1)
	part.Number = 1
	require.Equal(t, quota.Busy, last.ask(part).Outcome)
	require.EqualValues(t, 1, b.holder(7, slots(1000)).Sums.NewReport(7, 1, 0).Number)
}

// TestOperateOnWhatIsHeld: an operator sees used and held apart.
func TestOperateOnWhatIsHeld(t *testing.T) {
	b := old(t)
	d := define(1, quota.LeaseOff, fixed(5, minute), slots(0))
	x := b.holder(1, d.Windows...)
	x.report(3)
	operate := func(o action.Action) action.Outcome {
		f, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, o)
		require.NoError(t, err)
		return f
	}
	f := operate(&action.Inspect{Units: 3})
	require.True(t, f.Denied && f.HeldBack)
	require.Equal(t, []quota.Standing{{Used: 0, ResetNs: minute}, {Used: 3}}, f.Standings)
	require.False(t, operate(hit(2)).Denied)
	require.True(t, operate(hit(1)).Denied)
	require.True(t, operate(&action.Reset{}).HadUsage)
	require.Equal(t, []quota.Standing{{Used: 0, ResetNs: minute}, {}}, operate(&action.Inspect{}).Standings)

	running := define(1, quota.LeaseOff, slots(3))
	_, err := b.service.Operate(t.Context(), "d", running, [16]byte{}, &action.Set{Units: 1})
	require.ErrorContains(t, err, "which inc and set cannot change")
}

// TestAPartWithoutAReport: what it takes of a definition that holds units is counted at once, so it is granted.
func TestAPartWithoutAReport(t *testing.T) {
	b := old(t)
	holds, one := define(1, quota.LeaseOff, fixed(5, minute), slots(0)), define(2, quota.LeaseOff, fixed(1, minute))
	p := b.proxy(b.service, holds, one)
	g := p.ask(want(3)).Grants[0]
	require.EqualValues(t, 3, g.Units)
	require.Positive(t, g.ValidNs)
	require.Equal(t, quota.Denied, p.ask(want(1), quota.Part{Definition: 2, Cost: 2}).Outcome)
	require.EqualValues(t, 3, p.used()[0], "nobody got the other unit")
}

// TestAFailedUndoOfAPartWithoutAReport: what it took counts until its window ends, and no report corrects that.
func TestAFailedUndoOfAPartWithoutAReport(t *testing.T) {
	b := old(t)
	holds, one := define(1, quota.LeaseOff, fixed(5, minute), slots(0)), define(2, quota.LeaseOff, fixed(0, minute))
	p := b.proxy(b.service, holds, one)
	p.used() // by now the service knows the store's clock
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		if len(swaps) > 1 { // the hits
			return false
		}
		done(0, swapstore.Result{Status: swapstore.Failed, Err: errContended})
		return true
	}
	p.ask(want(3), quota.Part{Definition: 2, Cost: 1})
	b.store.bend = nil
	require.EqualValues(t, 3, p.used()[0])
	require.EqualValues(t, 3, b.service.metrics.unitsLost.Load())
}

// TestAPartInShadowWithoutAReport: as with a report, its denial begins the key's block once its ask is granted, and
// only then.
func TestAPartInShadowWithoutAReport(t *testing.T) {
	b := old(t)
	block := limit.NewBlock(minute, false)
	holds, one := define(1, quota.LeaseOff, fixed(1, second), block, slots(0)), define(2, quota.LeaseOff, fixed(1, minute))
	p := b.proxy(b.service, holds, one)
	shadow := want(2)
	shadow.Shadow = true
	blockedFor := func() int64 {
		peek := shadow
		peek.Inspect = true
		return p.ask(peek).Grants[0].Windows[1].ResetNs
	}
	require.Equal(t, quota.Denied, p.ask(shadow, quota.Part{Definition: 2, Cost: 2}).Outcome)
	require.Zero(t, blockedFor())
	require.Equal(t, quota.Granted, p.ask(shadow).Outcome)
	require.EqualValues(t, minute, blockedFor())
}
