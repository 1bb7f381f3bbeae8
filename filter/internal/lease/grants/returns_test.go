package grants_test

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/grants"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

const (
	second = 1_000_000_000
	idleNs = 2 * second
	endNs  = 10 * second
)

// worker has one key's lease, and stream 5 to the service.
type worker struct {
	t       *testing.T
	proxy   *hosttest.Proxy
	returns grants.Returns
	leases  *grants.Leases
	at      grants.At
	lost    uint64
}

func newWorker(t *testing.T, proxy *hosttest.Proxy) *worker {
	random := func(b []byte) { _, _ = rand.Read(b) }
	table := state.NewTables(proxy, random, 1, 1).LeaseTable(state.CounterID{1}, 7, 1, 100_000)
	w := &worker{t: t, proxy: proxy}
	w.leases = grants.New(table, &w.returns, idleNs, &w.lost)
	var e state.LeaseEntry
	require.Equal(t, state.OK, w.leases.Read(&e, []byte("key"), proxy.Now(), proxy.Now()))
	w.at = w.leases.At(e.Key())
	w.returns.StreamOpened(5)
	return w
}

// grantOf is a grant that came on a stream.
func grantOf(stream uint32) leased.GrantID {
	return leased.GrantID{Stream: stream, Number: 1, EndNs: endNs}
}

// put puts units of a grant into the lease, and has them watched.
func (w *worker) put(grant leased.GrantID, units uint32) {
	w.change(func(e *state.LeaseEntry) bool { return e.Put(leased.GrantUnits{GrantID: grant, Units: units}) })
	w.at.Watch(grant, w.proxy.Now())
}

// spend has a request spend units of the lease.
func (w *worker) spend(units uint32) {
	w.change(func(e *state.LeaseEntry) bool {
		e.Spend(e.NowNs, units)
		return true
	})
}

func (w *worker) change(changed func(e *state.LeaseEntry) bool) {
	require.True(w.t, w.at.Change(w.proxy.Now(), w.proxy.Now(), changed))
}

// after ticks once the time has passed, and returns what leaves with a message.
func (w *worker) after(passNs int64) []quota.Return {
	for range passNs / (second / 10) {
		w.proxy.Clock += second / 10
		if w.returns.AreDue(w.proxy.Now()) {
			w.returns.CollectIdle(w.proxy.Now(), w.proxy.Now())
		}
	}
	leave := w.returns.AppendTo(nil)
	w.returns.Sent(len(leave))
	return leave
}

// What becomes of the 4 units of a grant that were put into a lease: each is spent, goes back, or is lost.
func TestEachUnitEndsInOneWay(t *testing.T) {
	for name, tc := range map[string]struct {
		stream uint32 // of the grant
		do     func(w *worker)
		back   uint32
		lost   uint64
	}{
		"nobody takes them":           {5, func(*worker) {}, 4, 0},
		"one is spent":                {5, func(w *worker) { w.spend(1) }, 3, 0},
		"all are spent":               {5, func(w *worker) { w.spend(4) }, 0, 0},
		"the stream ends":             {5, func(w *worker) { w.returns.StreamEnded() }, 0, 4},
		"they came on an earlier one": {4, func(*worker) {}, 0, 4},
		"they are refunded":           {5, func(w *worker) { w.spend(4); w.after(second); w.refund(4) }, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, hosttest.New())
			w.put(grantOf(tc.stream), 4)
			tc.do(w)
			var back uint32
			for _, r := range w.after(2 * endNs) {
				back += r.Units
			}
			require.Equal(t, tc.back, back)
			require.Equal(t, tc.lost, w.lost)
			require.Empty(t, w.after(2*endNs), "once")
			require.Equal(t, tc.lost, w.lost, "once")
		})
	}
}

// refund puts units back that a request has spent.
func (w *worker) refund(units uint32) {
	grant := grantOf(5)
	w.change(func(e *state.LeaseEntry) bool { return e.Put(leased.GrantUnits{GrantID: grant, Units: units}) })
	w.at.WatchAgain(grant, w.proxy.Now())
}

// Units go back once nobody has written their lease for idleNs, not sooner.
func TestUnitsGoBackOnceTheyAreIdle(t *testing.T) {
	w := newWorker(t, hosttest.New())
	require.Zero(t, w.returns.PeriodNs())
	w.put(grantOf(5), 4)
	require.EqualValues(t, idleNs, w.returns.PeriodNs())
	require.Empty(t, w.after(idleNs-second/2))
	w.spend(1)
	require.Empty(t, w.after(idleNs-second/2))
	require.Equal(t, []quota.Return{{Grant: 1, Units: 3}}, w.after(second))
	require.Zero(t, w.returns.PeriodNs(), "nothing is left to visit")
}

// A lease has units of two grants. Those of the first leave it, which is no use of the others.
func TestUnitsOfTwoGrantsGoBackTogether(t *testing.T) {
	w := newWorker(t, hosttest.New())
	first, next := grantOf(5), grantOf(5)
	next.Number = 2
	w.put(first, 4)
	w.put(next, 3)
	require.Equal(t, []quota.Return{{Grant: 1, Units: 4}, {Grant: 2, Units: 3}}, w.after(idleNs+second))
}

// Two workers of a proxy share the lease. Each returns the units of its own grant, on its own stream.
func TestEachWorkerReturnsItsOwnUnits(t *testing.T) {
	proxy := hosttest.New()
	one, other := newWorker(t, proxy), newWorker(t, proxy)
	other.returns.StreamOpened(6)
	one.put(grantOf(5), 4)
	other.put(grantOf(6), 3)
	one.change(func(e *state.LeaseEntry) bool { return e.Left(e.NowNs) == 4+3 })
	require.Equal(t, []quota.Return{{Grant: 1, Units: 4}}, one.after(2*idleNs))
	require.Equal(t, []quota.Return{{Grant: 1, Units: 3}}, other.after(2*idleNs))
	require.Zero(t, one.lost+other.lost)
}

// What is in no lease goes back at once, as long as the stream is open that got it.
func TestWhatIsInNoLeaseGoesBackAtOnce(t *testing.T) {
	w := newWorker(t, hosttest.New())
	give := func(stream, units uint32) {
		w.leases.GiveBack(leased.GrantUnits{GrantID: grantOf(stream), Units: units})
	}
	give(5, 0)
	give(5, 2)
	give(4, 3)
	require.Equal(t, []quota.Return{{Grant: 1, Units: 2}}, w.after(0))
	require.EqualValues(t, 3, w.lost)
	give(5, 6)
	w.returns.StreamEnded()
	require.Empty(t, w.after(0))
	require.EqualValues(t, 3+6, w.lost, "its stream ended before the message left")
}

// A worker with thousands of grants visits few of them at a time, and each in turn, so that requests need not wait.
// Nevertheless each goes back before it counts as stranded.
func TestAWorkerVisitsFewGrantsAtATime(t *testing.T) {
	const (
		grantsOfWorker, mostVisits = 4000, 128
		tickNs, restNs             = int64(second / 100), int64(second / 25)
	)
	w := newWorker(t, hosttest.New())
	for number := range uint32(grantsOfWorker) {
		var e state.LeaseEntry
		key := fmt.Append(nil, number)
		require.Equal(t, state.OK, w.leases.Read(&e, key, w.proxy.Now(), w.proxy.Now()))
		w.at = w.leases.At(e.Key())
		grant := grantOf(5)
		grant.Number = 1 + number
		w.put(grant, 1)
	}
	w.after(second / 10) // new grants pay for the first visits
	began := w.proxy.Now()
	roundAtNs, back := began, 0
	for w.proxy.Now() < began+idleNs+leased.StrandedNs {
		w.proxy.Clock += tickNs
		if w.returns.AreDue(w.proxy.Now()) {
			require.GreaterOrEqual(t, w.proxy.Now()-roundAtNs, restNs)
			roundAtNs = w.proxy.Now()
			w.proxy.Calls = nil
			w.returns.CollectIdle(w.proxy.Now(), w.proxy.Now())
			require.LessOrEqual(t, len(w.proxy.Calls), 2*mostVisits, "a read each, and a write")
		}
		leave := len(w.returns.AppendTo(nil))
		w.returns.Sent(leave)
		back += leave
	}
	require.Equal(t, grantsOfWorker, back)
	require.Zero(t, w.lost)
	require.Zero(t, w.returns.PeriodNs())
}
