package quotaservice

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func TestAsk(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	require.Equal(t, quota.AskResult{ID: 1, Outcome: quota.Granted, Grants: []quota.Grant{{
		Number: 1, Units: 4, Leased: true, ValidNs: 9995 * ms, Windows: []quota.Standing{{Used: 4, ResetNs: minute}},
	}}}, p.ask(want(4)))
	b.clock.advance(second)
	require.Equal(t, quota.AskResult{ID: 2, Outcome: quota.Denied, Grants: []quota.Grant{{
		Denied: true, WaitNs: 59 * second, Windows: []quota.Standing{{Used: 4, ResetNs: 59 * second}},
	}}}, p.ask(want(7)))
	require.EqualValues(t, 6, p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 9}).Grants[0].Units, "what a denial left")
	require.Equal(t, quota.Granted, p.ask(want(0)).Outcome, "a cost of 0 passes")
	require.Equal(t, limit.Never, p.ask(want(11)).Grants[0].WaitNs)
	require.Equal(t, quota.Unknown, p.ask(quota.Part{Definition: 2}).Outcome)
	b.clock.advance(minute)
	require.EqualValues(t, 4, p.ask(want(4)).Grants[0].Units)
}

// TestCountDenied: what a rule denies counts, if the rule says so; what another part
// of the ask denies does not.
func TestCountDenied(t *testing.T) {
	b := newRig(t)
	counts := define(1, quota.LeaseOff, fixed(10, minute))
	counts.CountDenied = true
	p := b.proxy(b.service, counts, define(2, quota.LeaseOff, fixed(1, minute)))
	require.Equal(t, quota.Denied, p.ask(want(2), quota.Part{Definition: 2, Cost: 2}).Outcome)
	require.Equal(t, quota.Denied, p.ask(quota.Part{Definition: 1, Cost: 11, Waiting: 22}).Outcome, "two requests")
	require.EqualValues(t, 10, b.inspect(p).Used, "the limit, once")
}

// TestGroup: all parts are granted or none, and what a part has taken is undone
// before the answer.
func TestGroup(t *testing.T) {
	for name, w := range each(10, minute) {
		b := newRig(t)
		p := b.proxy(b.service, define(1, quota.LeaseOff, w), define(2, quota.LeaseOff, fixed(1, minute)))
		a := p.ask(want(3), quota.Part{Definition: 2, Cost: 1}, quota.Part{Definition: 1, Key: [16]byte{9}, Cost: 1})
		require.Equal(t, quota.Granted, a.Outcome, name)
		require.Len(t, a.Grants, 3)
		require.False(t, a.Grants[0].Leased, name)
		a = p.ask(want(3), quota.Part{Definition: 2, Cost: 1}, quota.Part{Definition: 1, Key: [16]byte{9}, Cost: 1})
		require.Equal(t, quota.Denied, a.Outcome, name)
		require.Equal(t, []bool{false, true, false}, []bool{a.Grants[0].Denied, a.Grants[1].Denied, a.Grants[2].Denied}, name)
		require.EqualValues(t, 3, a.Grants[0].Windows[0].Used, name)
		require.Zero(t, a.Grants[0].Units+a.Grants[2].Units, name)
		require.EqualValues(t, 7, p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 10}).Grants[0].Units, name)
	}
}

// TestReturns: units of a grant go back, in one return or several, never more than it gave, on the stream that got
// the grant, and only while what counted them is still there.
func TestReturns(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseAuto, fixed(10, minute))
	p, q := b.proxy(b.service, d), b.proxy(b.service, d)
	used := func() uint32 { return p.used()[0] }
	grant := p.ask(want(6)).Grants[0].Number
	q.giveBack(grant, 6)
	require.EqualValues(t, 6, used(), "another stream's grant")
	p.giveBack(grant+1, 6)
	p.giveBack(0, 6)
	require.EqualValues(t, 6, used(), "no grant")
	p.giveBack(grant, 4)
	require.EqualValues(t, 2, used())
	p.giveBack(grant, 1)
	require.EqualValues(t, 1, used(), "another request has left its unit")
	grant = p.ask(want(3)).Grants[0].Number
	p.giveBack(grant, 2)
	p.giveBack(grant, 9)
	require.EqualValues(t, 1, used(), "not more than was granted")
	p.giveBack(grant, 1)
	require.EqualValues(t, 1, used(), "not more than was granted")

	late := p.ask(want(2)).Grants[0].Number
	b.clock.advance(minute)
	q.ask(want(5))
	p.giveBack(late, 2)
	require.EqualValues(t, 5, used(), "of a window that has ended")

	late = p.ask(want(2)).Grants[0].Number
	_, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, &action.Set{Units: 7, Window: action.AllWindows})
	require.NoError(t, err)
	p.giveBack(late, 2)
	require.EqualValues(t, 7, used(), "of before the key was set")

	late = p.ask(want(2)).Grants[0].Number
	require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{define(1, quota.LeaseAuto, fixed(20, second))}}))
	p.ask(want(1))
	require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{d}}))
	require.EqualValues(t, 9, used(), "another definition has asked, and nothing is forgotten")
	p.giveBack(late, 2)
	require.EqualValues(t, 7, used(), "as if it had not")
}

// TestGrantsRemembered: the 4,096 newest, and none for ever.
func TestGrantsRemembered(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(1e6, 3600*second)))
	for range quota.MaxReturnable + 1 {
		p.ask(want(1))
	}
	used := func() uint32 { return p.used()[0] }
	p.giveBack(1, 1)
	require.EqualValues(t, quota.MaxReturnable+1, used(), "the oldest is forgotten")
	p.giveBack(2, 1)
	p.giveBack(quota.MaxReturnable+1, 1)
	require.EqualValues(t, quota.MaxReturnable-1, used())
	b.clock.advance(31 * second)
	p.ask(want(1))
	require.Len(t, p.worker.returnables.list, 1)
}

// TestMetrics: what the service counts is on its page.
func TestMetrics(t *testing.T) {
	b := old(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.service.Collectors()...)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	p.ask(want(6))
	p.ask(want(5))
	p.giveBack(1, 2)
	p.giveBack(1, 5)
	p.giveBack(7, 3)
	page := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "sluice_quota_")
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				if v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
					all[name] = v
				}
			}
		}
		return all
	}
	require.Equal(t, map[string]float64{
		"asks_total granted": 1, "asks_total denied": 1,
		"units_granted_total": 6, "units_returned_total": 6, "units_lost_total": 3,
		"streams": 1, "late_total": 1, "ask_seconds": 2,
	}, page())
	p.ask(want(3))
	b.store.bend = func(_ []swapstore.Swap, done func(int, swapstore.Result)) bool {
		done(0, swapstore.Result{Status: swapstore.Failed, Err: errors.New("cut")})
		return true
	}
	p.ask(want(1))
	require.InDelta(t, 3, page()["units_held"], 0)
	require.InDelta(t, 1, page()["degraded"], 0)
	require.EqualError(t, b.service.Healthy(t.Context()), "cut")
	b.store.bend = nil
	require.NoError(t, b.service.Healthy(t.Context()))
	b.clock.advance(11 * second)
	p.ask(want(1))
	require.Zero(t, page()["degraded"])
	require.InDelta(t, 1, page()["units_held"], 0)
}

// silent is a store that has gone away.
type silent struct{ swapstore.Store }

func (silent) Secret(context.Context, string, func() []byte) ([]byte, error) {
	return nil, errors.New("gone")
}

// stuck is a store that does not say how many processes are alive.
type stuck struct{ swapstore.Store }

func (stuck) Live(ctx context.Context, _ string, _ uint64) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// TestNotingAProcessTakesNoLongerThanASwap: else one process that the store does not note keeps it from noting the
// others.
func TestNotingAProcessTakesNoLongerThanASwap(t *testing.T) {
	b := newRig(t)
	s, err := NewService(t.Context(), Options{Store: b.store, Clock: b.clock, StoreTimeout: time.Millisecond})
	require.NoError(t, err)
	b.proxy(s, define(1, quota.LeaseOff, fixed(10, minute)))
	b.clock.advance(0)
	b.store.Store = stuck{b.memory}
	s.NoteProcesses()
	require.EqualValues(t, 1, s.metrics.storeErrors.Load())
}

// TestProcessesAreNotedSeveralAtOnce: else a thousand take longer than LiveFor, and those noted first no longer count.
func TestProcessesAreNotedSeveralAtOnce(t *testing.T) {
	const processes = 8
	b := newRig(t)
	for number := range uint64(processes) {
		st, err := b.service.Open(Peer{}, func() {})
		require.NoError(t, err)
		require.NoError(t, st.Receive((&quota.Asks{Domain: "d", Process: number + 1}).Append(nil)))
	}
	b.clock.advance(0)
	var begun atomic.Int32
	allBegun := make(chan struct{})
	b.store.late = func() {
		if begun.Add(1) == processes {
			close(allBegun)
		}
		select {
		case <-allBegun:
		case <-t.Context().Done():
		}
	}
	b.clock.advance(2 * int64(swapstore.LiveFor)) // nobody counts any more: the store says 1, 2, 3 and so on
	b.store.told = func(n int) {
		if n < processes {
			time.Sleep(10 * time.Millisecond) // the largest answer comes first
		}
	}
	noted := make(chan struct{})
	go func() {
		b.service.NoteProcesses()
		close(noted)
	}()
	select {
	case <-noted:
	case <-time.After(10 * time.Second):
		require.Fail(t, "one waits for the other")
	}
	for w := range b.service.core.workers {
		require.EqualValues(t, processes, w.domain.proxies, "the largest answer")
	}
}

// While nobody asks, heartbeats tell whether the store answers. One that is answered
// hides no swap that has failed since the one before.
func TestDegradedIsTrueOfAnIdleService(t *testing.T) {
	b := newRig(t)
	degraded := func() int32 { b.service.Heartbeat(); return b.service.metrics.degraded.Load() }
	require.Zero(t, degraded())
	b.store.Store = silent{b.memory}
	require.EqualValues(t, 1, degraded())
	b.store.Store = b.memory
	require.Zero(t, degraded())

	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	b.store.bend = func(_ []swapstore.Swap, done func(int, swapstore.Result)) bool {
		done(0, swapstore.Result{Status: swapstore.Failed, Err: errors.New("read only")})
		return true
	}
	p.ask(want(1))
	require.EqualValues(t, 1, degraded())
	require.Zero(t, degraded())
}

// TestTheStoresClockDecides: a decision that arrives late is made again.
func TestTheStoresClockDecides(t *testing.T) {
	for name, c := range map[string]struct {
		startNs, slowNs int64
	}{
		"in time":                    {0, 4 * ms},
		"later than the slack":       {0, 6 * ms},
		"after the window has ended": {minute - 6*ms, 6 * ms},
		"too near the window's end":  {minute - 4*ms, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRig(t)
			p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
			p.ask(quota.Part{Definition: 1, Inspect: true}) // the service knows the store's clock
			b.clock.advance(c.startNs)
			slow := c.slowNs
			b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
				b.clock.now, slow = b.clock.now+slow, 0
				return false
			}
			sent := b.clock.now
			require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(10)}}}}))
			b.clock.advance(5 * ms)
			got := p.take()
			require.Len(t, got, 1)
			g := got[0].Grants[0]
			require.EqualValues(t, 10, g.Units)
			w := fixed(10, minute)
			counted := b.inspect(p)
			require.EqualValues(t, 10, counted.Used)
			ends := w.End(base + b.clock.now)
			require.LessOrEqual(t, base+sent+g.ValidNs, ends, "the lease ends with the window that counts it")
			require.Equal(t, quota.Denied, p.ask(want(1)).Outcome)
		})
	}
}

// TestTheServicesClockSteps: the store refuses what was decided by a clock that is
// ahead, by a second or by less than the slack at a window's end.
func TestTheServicesClockSteps(t *testing.T) {
	for _, c := range []struct{ atNs, stepNs int64 }{{500 * ms, second}, {998 * ms, 3 * ms}, {500 * ms, -second}} {
		b := newRig(t)
		s := b.another(0)
		p := b.proxy(s, define(1, quota.LeaseOff, fixed(10, second)))
		b.clock.advance(c.atNs)
		require.Equal(t, quota.Granted, p.ask(want(10)).Outcome)
		s.o.Clock.(*apart).ns += c.stepNs
		require.Equal(t, quota.Denied, p.ask(want(1)).Outcome, "%+v", c)
	}
}

// TestCacheIsBounded: keys that are asked for once are forgotten.
func TestCacheIsBounded(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	b.service.core.keys.max = 100
	for i := range uint64(1100) {
		p.ask(quota.Part{Definition: 1, Key: quota.KeyOf(i, 1), Cost: 6})
	}
	require.Len(t, b.service.core.keys.byStoreKey, 100)
	require.Equal(t, 100, b.service.core.keys.idle.Len())
	more := quota.Part{Definition: 1, Key: quota.KeyOf(1, 1), Cost: 6}
	require.Equal(t, quota.Denied, p.ask(more).Outcome, "the store has them all")
}

// TestUnknownOutcome: a swap of which the service does not know whether it was
// carried out is not repeated, and its units stay counted.
func TestUnknownOutcome(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	b.inspect(p)
	before := b.store.swaps.Load()
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		b.memory.Swap(t.Context(), swaps, func(i int, _ swapstore.Result) {
			done(i, swapstore.Result{Status: swapstore.Failed, Err: errors.New("cut")})
		})
		return true
	}
	require.Equal(t, quota.Unavailable, p.ask(want(4)).Outcome)
	require.Equal(t, before+1, b.store.swaps.Load())
	b.store.bend = nil
	require.EqualValues(t, 4, p.used()[0])
	require.EqualValues(t, 6, p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 10}).Grants[0].Units)
}

// TestPartsOfOneKeyStandAsTheKeyDoes: both have got their units, which are taken back by one swap because another part
// is denied. So both are answered that nothing is used, whichever was undone first.
func TestPartsOfOneKeyStandAsTheKeyDoes(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)), define(2, quota.LeaseOff, fixed(1, minute)))
	a := p.ask(want(2), want(4), quota.Part{Definition: 2, Cost: 2})
	require.Equal(t, quota.Denied, a.Outcome)
	for i := range 2 {
		require.Zero(t, a.Grants[i].Windows[0].Used, i)
	}
}

// TestCountDeniedInShadow: a part in shadow that is denied counts where no other part
// denies the request.
func TestCountDeniedInShadow(t *testing.T) {
	b := newRig(t)
	tried, d := define(1, quota.LeaseOff, fixed(3, minute)), define(2, quota.LeaseOff, fixed(1, minute))
	tried.CountDenied = true
	p := b.proxy(b.service, tried, d)
	shadow := quota.Part{Definition: 1, Cost: 2, Waiting: 4, Shadow: true}
	p.ask(quota.Part{Definition: 1, Cost: 2})
	a := p.ask(shadow, quota.Part{Definition: 2, Cost: 1})
	require.Equal(t, quota.Granted, a.Outcome)
	denied := quota.Grant{Denied: true, WaitNs: minute, Windows: []quota.Standing{{Used: 5, ResetNs: minute}}}
	require.Equal(t, denied, a.Grants[0])
	a = p.ask(shadow, quota.Part{Definition: 2, Cost: 1})
	require.Equal(t, quota.Denied, a.Outcome)
	require.EqualValues(t, 5, b.inspect(p).Used)
}

// TestCountDeniedInShadowTooLate: what is denied counts in no later window.
func TestCountDeniedInShadowTooLate(t *testing.T) {
	b := newRig(t)
	b.clock.now = 900 * ms
	tried := define(1, quota.LeaseOff, fixed(3, second))
	tried.CountDenied = true
	p := b.proxy(b.service, tried)
	p.ask(want(3))
	swaps := 0
	b.store.bend = func([]swapstore.Swap, func(int, swapstore.Result)) bool {
		if swaps++; swaps == 2 {
			b.clock.advance(200 * ms)
		}
		return false
	}
	a := p.ask(quota.Part{Definition: 1, Cost: 1, Waiting: 3, Shadow: true})
	require.Equal(t, quota.Granted, a.Outcome)
	require.True(t, a.Grants[0].Denied)
	require.Zero(t, b.inspect(p).Used)
}

// TestAFailedShadowPart: an error of the store for a part in shadow is told of that
// part; for another part it undoes the ask.
func TestAFailedShadowPart(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)), define(2, quota.LeaseAuto, fixed(10, minute)))
	var newer swapstore.Swap
	b.store.bend = func(swaps []swapstore.Swap, _ func(int, swapstore.Result)) bool {
		newer = swaps[0]
		newer.New = bytes.Clone(newer.New)
		return false
	}
	p.ask(want(4))
	b.store.bend = nil
	newer.Old = bytes.Clone(newer.New[:swapstore.NonceBytes])
	newer.New[0]++
	newer.New[swapstore.NonceBytes] = 255 // its version
	b.memory.Swap(t.Context(), []swapstore.Swap{newer}, func(_ int, r swapstore.Result) {
		require.Equal(t, swapstore.Swapped, r.Status)
	})
	fails, works := want(1), quota.Part{Definition: 2, Cost: 1}
	fails.Shadow = true
	a := p.ask(fails, works)
	require.Equal(t, quota.Granted, a.Outcome)
	require.True(t, a.Grants[0].Failed)
	require.EqualValues(t, 1, b.service.metrics.mismatches.Load())
	require.EqualValues(t, 1, a.Grants[1].Units)

	fails.Shadow, works.Shadow = false, true
	require.Equal(t, quota.Unavailable, p.ask(fails, works).Outcome)
	works.Inspect = true
	require.EqualValues(t, 1, p.ask(works).Grants[0].Windows[0].Used, "undone")
}

// TestUnitsThatAFailedStoreKeepsAreLost: if the store does not take a return or an undo, its units go on to count.
func TestUnitsThatAFailedStoreKeepsAreLost(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)), define(2, quota.LeaseOff, fixed(1, minute)))
	m := &b.service.metrics
	counted := func() [2]uint64 { return [2]uint64{m.unitsReturned.Load(), m.unitsLost.Load()} }
	grant := p.ask(want(3)).Grants[0].Number
	fails := func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		for i := range swaps {
			done(i, swapstore.Result{Status: swapstore.Failed, Err: errors.New("cut")})
		}
		return true
	}
	b.store.bend = fails
	p.giveBack(grant, 2)
	require.Equal(t, [2]uint64{0, 2}, counted())

	b.store.bend = nil
	require.EqualValues(t, 3, b.inspect(p).Used)
	hits := 2 // of the next ask: both are answered, and then the undo fails
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		hits -= len(swaps)
		return hits < 0 && fails(swaps, done)
	}
	a := p.ask(want(4), quota.Part{Definition: 2, Cost: 2})
	require.Equal(t, quota.Denied, a.Outcome)
	require.Equal(t, [2]uint64{0, 6}, counted())
	require.EqualValues(t, 7, a.Grants[0].Windows[0].Used, "as the key stood last as far as is known")
	b.store.bend = nil
	require.EqualValues(t, 7, b.inspect(p).Used)
}

// TestEachAskForADamagedValueIsCounted: also if several wait for one key.
func TestEachAskForADamagedValueIsCounted(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		for i := range swaps {
			done(i, swapstore.Result{Status: swapstore.Read, Value: []byte("damaged value"), NowNs: base})
		}
		return true
	}
	asks := []quota.Ask{{ID: 1, Parts: []quota.Part{want(1)}}, {ID: 2, Parts: []quota.Part{want(1)}}}
	require.NoError(t, p.send(quota.Asks{Asks: asks}))
	require.EqualValues(t, 1, b.store.swaps.Load())
	require.EqualValues(t, 2, b.service.metrics.mismatches.Load())
}
