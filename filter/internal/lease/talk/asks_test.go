package talk

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var perKey = &quota.Definition{ID: 3}

// of is a part that asks for units of a key.
func of(key byte, cost uint32) []lease.Part {
	return []lease.Part{{
		Definition: perKey,
		Wire:       quota.Part{Definition: perKey.ID, Key: [16]byte{key}, Cost: cost, Waiting: cost},
	}}
}

// sendAll sends what is queued, under numbers from first on.
func (as *askList) sendAll(first uint32, now int64) {
	for i, a := range as.queue {
		a.id, a.sentNs = first+uint32(i), now
		for j := range a.parts {
			a.parts[j].Tell(now)
		}
	}
	as.fly(slices.Clone(as.queue))
}

func TestRequestsForTheSameUnitsShareAnAsk(t *testing.T) {
	as := newAskList()
	first, second := &Waiter{}, &Waiter{}
	as.join(first, of('k', 1))
	as.join(second, of('k', 3))
	as.join(&Waiter{}, of('l', 1))
	require.Len(t, as.queue, 2)
	require.Equal(t, []*Waiter{first, second}, as.queue[0].waiters)
	wire := &as.queue[0].parts[0].Wire
	require.EqualValues(t, 1, wire.Cost)
	require.EqualValues(t, 4, wire.Waiting)

	as.leave(first)
	require.Len(t, as.queue, 2)
	as.leave(second)
	require.Len(t, as.queue, 1, "nobody waits for k any more")
	require.Empty(t, second.asks)
}

// A look at a key is never an ask for its units, whatever these cost. Where denied requests count, the cost is part of
// what an ask wants.
func TestALookIsAnotherAskThanOneForUnits(t *testing.T) {
	counts := &quota.Definition{ID: 3, CountDenied: true}
	bytesOf := func(p quota.Part) string {
		p.Definition, p.Key = counts.ID, [16]byte{'k'}
		return string(appendWant(nil, []lease.Part{{Definition: counts, Wire: p}}))
	}
	look := bytesOf(quota.Part{Inspect: true})
	require.NotEqual(t, look, bytesOf(quota.Part{Cost: binary.LittleEndian.Uint32([]byte("look"))}))
	require.NotEqual(t, look, bytesOf(quota.Part{}))
	require.NotEqual(t, bytesOf(quota.Part{Cost: 1}), bytesOf(quota.Part{Cost: 2}))
}

// What requests to come need is asked first. A request that joins it says what the service grants at least.
func TestAnAskAheadIsFirst(t *testing.T) {
	as, req := newAskList(), &Waiter{}
	as.join(&Waiter{}, of('l', 1))
	as.askForNobody(of('k', 0))
	as.askForNobody(of('k', 0))
	require.Len(t, as.queue, 2)
	as.join(req, of('k', 5))
	require.Equal(t, []*Waiter{req}, as.queue[0].waiters)
	require.EqualValues(t, 5, as.queue[0].parts[0].Wire.Cost)
	require.EqualValues(t, 5, as.queue[0].parts[0].Wire.Waiting)
}

// An ask that is late ends its report, and the account is reported again.
func TestALateAskReportsAgain(t *testing.T) {
	windows := []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: 1}}
	book := account.NewBook()
	acc := book.Open(&quota.Definition{ID: 3, Windows: windows}, [16]byte{'k'}, 0)
	as := newAskList()
	as.askForNobody([]lease.Part{lease.ReportPart(acc)})
	as.sendAll(1, 0)
	as.makeLate(99, 100)
	require.True(t, acc.IsUnderWay())
	as.makeLate(100, 100)
	require.False(t, acc.IsUnderWay())
	require.True(t, book.HasListed())
}

// A report says nothing of the rule, and each request that joins it does: here one of a rule in shadow mode, whose
// counter another rule enforces. So says the ask again that is queued after the end of a stream.
func TestARequestThatJoinsAReportSaysItsRule(t *testing.T) {
	windows := []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: 1}}
	acc := account.NewBook().Open(&quota.Definition{ID: 3, Windows: windows}, [16]byte{'k'}, 0)
	report := func() []lease.Part { return []lease.Part{lease.ReportPart(acc)} }
	request := func() []lease.Part {
		parts := report()
		wire := &parts[0].Wire
		wire.Cost, wire.Waiting = 1, 1
		wire.Shadow, wire.NoBlock = true, true
		return parts
	}
	joined := newAskList()
	joined.askForNobody(report())
	joined.join(&Waiter{}, request())
	requeued := newAskList()
	requeued.join(&Waiter{}, request())
	requeued.sendAll(1, 0)
	requeued.askForNobody(report())
	requeued.streamEnded()
	for what, as := range map[string]*askList{"joined": &joined, "queued again": &requeued} {
		require.Len(t, as.queue, 1, what)
		wire := &as.queue[0].parts[0].Wire
		require.EqualValues(t, 1, wire.Waiting, what)
		require.True(t, wire.Shadow, what)
		require.True(t, wire.NoBlock, what)
	}
}

// After the end of a stream, requests of the ask that was sent wait before those of the queued one.
func TestAnAskIsQueuedAgainBeforeALaterOne(t *testing.T) {
	as := newAskList()
	first, second := &Waiter{}, &Waiter{}
	as.join(first, of('k', 2))
	as.askForNobody(of('l', 0))
	as.sendAll(1, 0)
	as.join(second, of('k', 3))
	later := as.queue[0]
	require.NotNil(t, as.flyingFor[as.queue[0].want])
	as.streamEnded()
	require.Len(t, as.queue, 1, "nobody waits for l")
	require.Nil(t, as.flyingFor[as.queue[0].want])
	require.Equal(t, []*Waiter{first, second}, as.queue[0].waiters)
	require.EqualValues(t, 2, as.queue[0].parts[0].Wire.Cost)
	require.EqualValues(t, 5, as.queue[0].parts[0].Wire.Waiting)
	require.Equal(t, []*ask{as.queue[0]}, first.asks)
	require.Equal(t, over, later.state)
}

// An ask without a result lets others ask for its units after the timeout, and has a result for lateNs.
func TestALateAskIsAskedAgain(t *testing.T) {
	const timeoutNs = 100
	as := newAskList()
	req := &Waiter{}
	as.join(req, of('k', 1))
	as.sendAll(7, 0)
	late := as.sent[0]
	as.makeLate(timeoutNs-1, timeoutNs)
	require.NotNil(t, as.flyingFor[late.want])
	as.leave(req)
	as.makeLate(timeoutNs, timeoutNs)
	require.Nil(t, as.flyingFor[late.want])

	second := &Waiter{}
	as.join(second, of('k', 1))
	as.sendAll(8, timeoutNs)
	next := as.sent[1]
	require.Same(t, late, as.find(7))
	as.move(late, over)
	require.Nil(t, as.find(7))
	require.Same(t, next, as.flyingFor[next.want], "the result of the late one is not its own")
	as.leave(second)
	as.makeLate(timeoutNs+lateNs, timeoutNs)
	require.Nil(t, as.find(8))
	require.Equal(t, over, next.state)
}

// Numbers of asks begin anew after the largest.
func TestResultsFindTheirAsks(t *testing.T) {
	as := newAskList()
	for key := range byte(5) {
		as.join(&Waiter{}, of(key, 1))
	}
	as.sendAll(1<<32-2, 0)
	require.EqualValues(t, 1, as.sent[3].id)
	for _, id := range []uint32{1<<32 - 1, 2, 1<<32 - 2, 0, 1} {
		a := as.find(id)
		require.NotNil(t, a)
		require.Equal(t, id, a.id)
		a.waiters = nil // as finish does
		as.move(a, over)
		require.Nil(t, as.find(id))
	}
	require.Empty(t, as.sent)
	require.Empty(t, as.flyingFor)
}

// An ask may wait for a stream for long. Its account is not forgotten meanwhile, so a request of another rule that
// shares the counter uses the same one, and the ask waits for its reports.
func TestAnAskKeepsItsAccount(t *testing.T) {
	const later = 100_000_000_000
	book, windows := account.NewBook(), []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: later}}
	own, other := &quota.Definition{ID: 1, Windows: windows}, &quota.Definition{ID: 2, Windows: windows}
	as := newAskList()
	as.askForNobody([]lease.Part{lease.ReportPart(book.Open(own, [16]byte{'k'}, 0))})
	book.Sweep(later, 0)
	require.False(t, book.IsEmpty())
	require.False(t, as.queue[0].mustWaitToReport())
	acc := book.Open(other, [16]byte{'k'}, later)
	acc.BeginReport(&quota.Part{}, later)
	require.True(t, as.queue[0].mustWaitToReport())
}
