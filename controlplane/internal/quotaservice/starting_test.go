package quotaservice

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// forget has the rig's store lose its state.
func (b *rig) forget() {
	b.memory = swapstore.NewMemory(func() int64 { return base + b.clock.now })
	b.store.Store = b.memory
}

// TestAStoreThatForgot: it grants nothing for four seconds, in which workers report what they hold.
// All keys wait together, also those that nobody has asked for before.
func TestAStoreThatForgot(t *testing.T) {
	b := old(t)
	x, y := b.holder(1, slots(3)), b.holder(2, slots(3))
	x.report(2)
	b.forget()
	g := y.report(1)
	require.True(t, g.Failed && g.Starting && g.Noted)
	require.EqualValues(t, StartingNs, g.WaitNs)
	b.clock.advance(StartingNs - 1)
	x.report(0)
	g = y.report(1)
	require.True(t, g.Starting)
	require.EqualValues(t, 1, g.WaitNs)
	g = y.report(2)
	require.True(t, g.Denied && g.HeldBack && !g.Starting, "x holds 2 of 3: no start gives y 2 more")
	b.clock.advance(1)
	require.EqualValues(t, 1, y.report(1).Units)
	require.True(t, y.report(1).Denied)

	fresh := b.proxy(b.service, define(1, quota.LeaseOff, slots(3)))
	part := want(3)
	part.Key[0], part.Number = 1, 1
	require.Equal(t, quota.Granted, fresh.ask(part).Outcome, "another key, later")
}

// TestTheStartIsTheStores: no hold of a proxy or a policy makes it shorter or longer, neither
// of the first that asks for a key nor of one that does so later.
func TestTheStartIsTheStores(t *testing.T) {
	for name, first := range map[string]int64{"a short hold": 10 * second, "a long hold": 3600 * second} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t)
			own := slots(10)
			own.PeriodNs = first
			x, y := b.holder(1, own), b.holder(2, slots(10))
			require.EqualValues(t, StartingNs, x.report(1).WaitNs)
			y.Hold(10) // it says so a little later
			b.clock.advance(StartingNs - 1)
			require.True(t, x.report(1).Starting)
			y.report(0)
			b.clock.advance(1)
			require.True(t, x.report(1).HeldBack, "10 are held of 10")
			y.Settle(10, 0)
			y.report(0)
			require.EqualValues(t, 10, x.report(10).Units)
		})
	}
}

// TestAnotherServiceDoesNotKnow: the store itself refuses what a service would grant that has not
// heard of its loss.
func TestAnotherServiceDoesNotKnow(t *testing.T) {
	b := newRig(t)
	b.clock.advance(StartingNs)
	other := b.another(0)
	x := b.holder(1, slots(3))
	y := &holder{proxy: b.proxy(other, define(1, quota.LeaseOff, slots(3))), worker: 2}
	require.EqualValues(t, 1, x.report(1).Units)
	require.EqualValues(t, 1, y.report(1).Units)
	b.forget()
	require.True(t, x.report(1).Starting)
	b.clock.advance(second)
	g := y.report(1)
	require.True(t, g.Starting)
	require.EqualValues(t, StartingNs-second, g.WaitNs)
	b.clock.advance(3 * second)
	require.EqualValues(t, 1, x.report(1).Units)
	require.True(t, y.report(1).HeldBack, "3 are held")
}

// TestAStoresClockSetBack: the store starts anew, and no longer than ever.
func TestAStoresClockSetBack(t *testing.T) {
	b := newRig(t)
	b.clock.now = 3600 * second
	b.forget()
	x := b.holder(1, slots(3))
	require.True(t, x.report(1).Starting)
	b.clock.now = 0
	require.EqualValues(t, StartingNs, x.report(1).WaitNs)
	b.clock.advance(StartingNs)
	require.EqualValues(t, 1, x.report(1).Units)
}

// TestAStoresClockSetForward: an emptied store whose clock is ahead of what the service knows is as young at once. What
// the service knew would be before the store began, by which no store is starting.
func TestAStoresClockSetForward(t *testing.T) {
	b := old(t)
	x := b.holder(1, slots(3))
	require.EqualValues(t, 1, x.report(1).Units)
	b.memory = swapstore.NewMemory(func() int64 { return base + b.clock.now + 50*ms })
	b.store.Store = b.memory
	b.store.swaps.Store(0)
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
		if b.store.swaps.Load() > 9 {
			b.clock.now += maxContendedNs // else it goes on for ever
		}
		return false
	}
	g := x.report(1)
	require.True(t, g.Starting && g.Noted)
	require.EqualValues(t, StartingNs, g.WaitNs)
}

// TestWhatHoldsNothingStartsAtOnce: also beside a part of the same ask that waits for the start, and
// the answer says so of each part.
func TestWhatHoldsNothingStartsAtOnce(t *testing.T) {
	b := newRig(t)
	x := b.holder(1, slots(3))
	leases := []quota.Definition{define(2, quota.LeaseAuto, fixed(5, minute))}
	require.NoError(t, x.send(quota.Asks{Definitions: leases}))
	require.Equal(t, quota.Granted, x.ask(quota.Part{Definition: 2, Cost: 1, Waiting: 1}).Outcome)
	p := want(1)
	p.Report = x.NewReport(1, 1, 0)
	beside := quota.Part{Definition: 2, Cost: 1, Waiting: 1}
	a := x.ask(p, beside)
	require.Equal(t, quota.Unavailable, a.Outcome)
	require.True(t, a.Grants[0].Starting)
	require.False(t, a.Grants[1].Failed || a.Grants[1].Denied)
	require.EqualValues(t, 1, a.Grants[1].Windows[0].Used, "what it got beside is taken back")
	beside.Cost = 5
	p.Report = x.NewReport(1, 2, 0)
	require.True(t, x.ask(p, beside).Grants[1].Denied)
	p.Report, p.Shadow = x.NewReport(1, 3, 0), true
	beside.Cost = 1
	a = x.ask(p, beside)
	require.Equal(t, quota.Granted, a.Outcome, "a part in shadow that waits keeps no other up")
	require.True(t, a.Grants[0].Starting && a.Grants[1].Units >= 1)
}

// TestAStoreThatForgotEndsStreams: of all services, whichever has found it, and once. So workers
// report what they hold on others.
func TestAStoreThatForgotEndsStreams(t *testing.T) {
	b := old(t)
	var log bytes.Buffer
	b.service.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.store.anew = true
	before := b.proxy(b.service, define(1, quota.LeaseOff, slots(3)))
	b.service.Watch()
	require.True(t, before.Ending(), "a server of a Cluster has another state, though it is old by now")
	require.Empty(t, log.String())
	before.Close()

	b.store.anew = false
	stays := b.proxy(b.service, define(1, quota.LeaseOff, slots(3)))
	b.service.Watch()
	require.False(t, stays.Ending())
	require.NoError(t, b.service.Starting())
	b.forget()
	b.store.anew = true
	b.service.Watch()
	require.True(t, stays.Ending())
	require.ErrorIs(t, b.service.Starting(), ErrStarting)
	b.store.anew = false
	after := b.proxy(b.service, define(1, quota.LeaseOff, slots(3)))
	b.clock.advance(second)
	b.service.Watch()
	require.False(t, after.Ending())
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`level=WARN msg="the quota store has no state: `)), log.String())
	require.EqualError(t, b.service.Starting(), ErrStarting.Error()+"; on_unavailable decides for 3s")
	b.clock.advance(3 * second)
	require.NoError(t, b.service.Starting())

	b.store.err = errors.New("silent")
	b.service.Watch()
	require.NoError(t, b.service.Starting(), "a store that does not answer has lost nothing")
}

// TestALookThatFailsIsLoggedAndCounted: the heartbeat asks for other things, and may be answered all the same.
func TestALookThatFailsIsLoggedAndCounted(t *testing.T) {
	b := newRig(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s, err := NewService(t.Context(), Options{Store: b.store, Clock: b.clock, Log: logger})
	require.NoError(t, err)
	log.Reset()
	b.store.err = errors.New("may not do that")
	s.Heartbeat()
	require.Empty(t, log.String())
	s.Watch()
	require.Contains(t, log.String(), `error="may not do that"`)
	require.EqualValues(t, 1, s.metrics.storeErrors.Load())
}

// TestASlowLookIsNoLoss: what takes long is the way to the store.
func TestASlowLookIsNoLoss(t *testing.T) {
	b := newRig(t)
	var log bytes.Buffer
	b.service.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.store.late = func() { b.clock.advance(second) }
	b.service.Watch()
	require.Empty(t, log.String())
	b.clock.advance(second)
	b.forget()
	b.service.Watch()
	require.Contains(t, log.String(), "level=WARN")
}

// TestOperateWhileTheStoreStarts: an operator reads and resets a key, and hears why nothing is held.
func TestOperateWhileTheStoreStarts(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(5, minute), slots(0))
	x := b.holder(1, d.Windows...)
	x.Hold(2)
	x.report(0)
	operate := func(o action.Action) (action.Outcome, error) {
		return b.service.Operate(t.Context(), "d", d, [16]byte{}, o)
	}
	f, err := operate(&action.Inspect{})
	require.NoError(t, err)
	require.Equal(t, []quota.Standing{{Used: 0, ResetNs: minute}, {Used: 2}}, f.Standings)
	inspect := func(units uint32) action.Action { return &action.Inspect{Units: units} }
	for _, what := range []func(uint32) action.Action{inspect, hit} {
		_, err = operate(what(1))
		require.ErrorIs(t, err, ErrStarting)
		f, err = operate(what(4))
		require.NoError(t, err)
		require.True(t, f.Denied && f.HeldBack)
	}
	f, err = operate(&action.Reset{})
	require.NoError(t, err)
	require.True(t, f.HadUsage)
	b.clock.advance(StartingNs)
	f, err = operate(&action.Inspect{Units: 1})
	require.NoError(t, err)
	require.False(t, f.Denied)
}

// TestAPeekOfAKeyThatWasLost: the service knows the key from before, when all of it was held. The store has nothing of
// it any more, and does not know yet what is held.
func TestAPeekOfAKeyThatWasLost(t *testing.T) {
	b := old(t)
	d := define(1, quota.LeaseOff, slots(2))
	require.EqualValues(t, 2, b.holder(1, d.Windows...).report(2).Units)
	peek := func() (action.Outcome, error) {
		return b.service.Operate(t.Context(), "d", d, [16]byte{}, &action.Inspect{Units: 1})
	}
	b.forget()
	_, err := peek()
	require.ErrorIs(t, err, ErrStarting)
	b.clock.advance(StartingNs)
	f, err := peek()
	require.NoError(t, err)
	require.False(t, f.Denied)
}

// TestNoteAgeTellsANewStart: looks at one beginning differ by what the store's answer is on its way, and are no new
// start.
func TestNoteAgeTellsANewStart(t *testing.T) {
	const known, tolerated = 100 * second, int64(WatchEvery)
	for name, c := range map[string]struct {
		later, onWay, left int64 // than known; of this look; until the start ends
		want               bool
	}{
		"the same look again":          {0, 0, second, false},
		"the answer was on its way":    {second, second, second, false},
		"clocks drift":                 {tolerated, 0, second, false},
		"the store has begun again":    {tolerated + 1, 0, second, true},
		"and its answer took a while":  {second + tolerated + 1, second, second, true},
		"that start has ended already": {second, 0, 0, false},
	} {
		untilNs := known + c.later
		now := untilNs - c.left
		looking := core{hasLooked: true, shownStartUntilNs: known}
		require.Equal(t, c.want, looking.noteAge(now+StartingNs-untilNs, now-c.onWay, now), name)
	}
}
