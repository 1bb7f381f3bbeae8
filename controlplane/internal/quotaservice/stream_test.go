package quotaservice

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func TestStreamsAreBounded(t *testing.T) {
	b := newRig(t)
	b.service.o.Allow = func(p Peer, domain string) error {
		if domain == "d" {
			return nil
		}
		return fmt.Errorf("%s may ask for d", p.Address)
	}
	open := func() *proxy {
		st, err := b.service.Open(Peer{Address: "it"}, func() {})
		require.NoError(t, err)
		return &proxy{t: t, Stream: st}
	}
	for _, c := range []struct {
		asks quota.Asks
		code codes.Code
		want string
	}{
		{quota.Asks{Domain: "e"}, codes.PermissionDenied, `domain "e": it may ask for d`},
		{quota.Asks{}, codes.InvalidArgument, "the first message of a stream must name its domain"},
		{quota.Asks{Domain: "d", Definitions: []quota.Definition{{ID: 1}}}, codes.InvalidArgument,
			"read a message of 25 bytes: a key, a counter, or all windows of a definition or parts of an ask are missing"},
	} {
		err := open().send(c.asks)
		require.Equal(t, c.code, status.Code(err))
		require.Equal(t, c.want, status.Convert(err).Message())
	}
	p := open()
	require.NoError(t, p.send(quota.Asks{Domain: "d"}))
	require.NoError(t, p.send(quota.Asks{Domain: "d"}), "as a proxy may repeat it")
	require.Equal(t, codes.InvalidArgument, status.Code(p.send(quota.Asks{Domain: "e"})))
	require.Equal(t, codes.InvalidArgument, status.Code(p.Receive(make([]byte, quota.MaxMessageBytes+1))))
}

// TestDefinitionsAreBounded: the definition that was used least recently goes.
func TestDefinitionsAreBounded(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service)
	for id := range uint32(quota.MaxDefinitions) {
		require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{define(id, 0, fixed(10, minute))}}))
	}
	of := func(id uint32) quota.Outcome { return p.ask(quota.Part{Definition: id, Cost: 1}).Outcome }
	require.Equal(t, quota.Granted, of(0))
	require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{define(5000, 0, fixed(10, minute))}}))
	require.Equal(t, []quota.Outcome{quota.Granted, quota.Unknown, quota.Granted}, []quota.Outcome{of(0), of(1), of(5000)})
	require.Len(t, p.worker.definitions.byID, quota.MaxDefinitions)
	require.Equal(t, quota.MaxDefinitions, p.worker.definitions.used.Len())
}

// TestARefusedDefinitionEndsTheOneBefore: asks that name its number are answered Unknown, until it has another one.
func TestARefusedDefinitionEndsTheOneBefore(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service)
	for _, c := range []struct {
		window  limit.Window
		outcome quota.Outcome
	}{
		{fixed(10, minute), quota.Granted},
		{fixed(10, 0), quota.Unknown},
		{fixed(10, hour), quota.Granted},
	} {
		require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{define(1, quota.LeaseOff, c.window)}}))
		require.Equal(t, c.outcome, p.ask(quota.Part{Definition: 1, Cost: 1}).Outcome)
	}
}

// TestUnreadAnswersEndTurns: a stream that does not read its answers begins no further asks, and
// its transport reads no further message.
func TestUnreadAnswersEndTurns(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	const begun = maxUnderWay / 2 // each with its window
	var m quota.Asks
	for range 2 * begun {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{{Definition: 1, Inspect: true}}})
	}
	require.NoError(t, p.send(m))
	require.Equal(t, maxUnderWay, p.worker.underWay)
	require.Len(t, p.worker.pending, begun)
	gone, leave := context.WithCancel(t.Context())
	leave()
	p.WaitUntilBegun(gone) // returns
	waits := make(chan struct{})
	waited := waitedFor{t.Context(), make(chan struct{}, 1)}
	go func() {
		p.WaitUntilBegun(waited)
		close(waits)
	}()
	<-waited.begins
	answered := len(p.take())
	require.Equal(t, 2*begun, answered)
	<-waits
	require.Zero(t, p.worker.underWay)
}

// TestUnreadWindowsEndTurns: a part takes as much room as its windows, because its answer tells of each.
func TestUnreadWindowsEndTurns(t *testing.T) {
	b := newRig(t)
	var windows []limit.Window
	for i := range quota.MaxWindows {
		windows = append(windows, fixed(10, minute+int64(i)))
	}
	p := b.proxy(b.service, define(1, quota.LeaseOff, windows...))
	const most, asks = maxUnderWay/(1+quota.MaxWindows) + turn, 1000
	var m quota.Asks
	for range asks {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{want(10)}})
	}
	require.NoError(t, p.send(m))
	require.GreaterOrEqual(t, len(p.worker.pending), asks-most)
	require.Len(t, p.take(), asks)
	require.Zero(t, p.worker.underWay)
}

// waitedFor is a context that says that somebody begins to wait for its end.
type waitedFor struct {
	context.Context
	begins chan struct{}
}

func (w waitedFor) Done() <-chan struct{} {
	select {
	case w.begins <- struct{}{}:
	default:
	}
	return w.Context.Done()
}

// TestRate: a stream that asks more often than one core serves is busy.
func TestRate(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(1e9, minute)))
	var m quota.Asks
	for range 1000 {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{want(1)}})
	}
	result := func() quota.Outcome { require.NoError(t, p.send(m)); return p.take()[0].Outcome }
	for range burstAsks / len(m.Asks) {
		require.Equal(t, quota.Granted, result())
	}
	require.Equal(t, quota.Busy, result())
	b.clock.advance(second)
	require.Equal(t, quota.Granted, result())
}

// TestUnreadAnswersOfABusyStreamEndTurns: that holds also for asks that are answered at once, because
// they are too many. Else a stream that reads nothing would have answers without end in memory.
func TestUnreadAnswersOfABusyStreamEndTurns(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	require.True(t, p.worker.rate.AllowN(time.Unix(0, b.service.o.Clock.NowNs()), burstAsks))
	var m quota.Asks
	for range maxUnderWay + 100 {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{want(1)}})
	}
	require.NoError(t, p.send(m))
	require.Equal(t, maxUnderWay, p.worker.underWay)
	require.Len(t, p.worker.pending, 100)
	answers := p.take()
	require.Len(t, answers, maxUnderWay+100)
	require.Equal(t, quota.Busy, answers[0].Outcome)
	require.Zero(t, p.worker.underWay)
}

// slow is a store that answers when a test lets it.
func (b *rig) slow() (answer func(n int)) {
	var open []func()
	b.store.bend = func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool {
		for i := range swaps {
			one := swaps[i]
			one.New = slices.Clone(one.New)
			open = append(open, func() {
				b.memory.Swap(context.Background(), []swapstore.Swap{one}, func(_ int, r swapstore.Result) { done(i, r) })
			})
		}
		return true
	}
	return func(n int) {
		for ; n > 0 && len(open) > 0; n-- {
			next := open[0]
			open = open[1:]
			next()
			b.pumped()
		}
	}
}

// pumped returns once what has landed is taken up, which another goroutine may be doing.
func (b *rig) pumped() {
	for busy := true; busy; {
		b.service.pump()
		b.service.mu.Lock()
		b.service.landed.mu.Lock()
		busy = b.service.core.pumping || len(b.service.landed.all) > 0
		b.service.landed.mu.Unlock()
		b.service.mu.Unlock()
	}
}

// TestStreamsTakeTurns: a flood on one stream does not delay another's ask.
func TestStreamsTakeTurns(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(10, minute))
	light := b.proxy(b.service, d)
	b.inspect(light)
	answer := b.slow()
	const floods = 3
	for n := range uint64(floods) {
		flood := b.proxy(b.service, d)
		var m quota.Asks
		for i := range uint64(1000) {
			part := quota.Part{Definition: 1, Key: quota.KeyOf(n, i+1), Cost: 1}
			m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{part}})
		}
		require.NoError(t, flood.send(m))
	}
	require.NoError(t, light.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(1)}}}}))
	b.service.mu.Lock()
	require.Equal(t, maxSwaps, b.service.core.swapsUnderWay, "no more wait at the store")
	b.service.mu.Unlock()
	answer(maxSwaps + (floods+1)*turn)
	require.Len(t, light.take(), 1)
}

// TestManyStreamsOfABusyKey: while the store has a key, its streams have their turns, and others
// get the lock in between.
func TestManyStreamsOfABusyKey(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(1000, minute))
	b.inspect(b.proxy(b.service, d))
	answer := b.slow()
	s := b.service
	setPumping := func(is bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.core.pumping = is
	}
	var all []*proxy
	for i := range 1 + 2*maxBatch {
		p := b.proxy(s, d)
		require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(1)}}}}))
		setPumping(i < 2*maxBatch) // the first one's swap is under way, the others' asks wait
		all = append(all, p)
	}
	s.mu.Lock()
	turns := s.core.prepareSwaps(&work{})
	left := len(s.core.turns)
	s.mu.Unlock()
	require.Equal(t, []int{maxBatch, maxBatch}, []int{turns, left})
	b.pumped()
	require.Empty(t, s.core.turns)
	answer(2)
	for _, p := range all {
		require.Len(t, p.take(), 1)
	}
}

// TestClosedStream: what is granted to a stream that has gone goes back, whatever its ask
// waited for then: the last of that is a denial in shadow to be counted.
func TestClosedStream(t *testing.T) {
	tried := define(2, quota.LeaseOff, fixed(1, minute))
	tried.CountDenied = true
	ask := quota.Ask{Parts: []quota.Part{
		{Definition: 1, Cost: 1, Waiting: 1, Ahead: 20}, {Definition: 2, Cost: 2, Waiting: 2, Shadow: true},
	}}
	for landed := range 5 {
		b := newRig(t)
		d := define(1, quota.LeaseAuto, fixed(1000, minute))
		p, q := b.proxy(b.service, d, tried), b.proxy(b.service, d)
		answer := b.slow()
		require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{ask}}))
		answer(landed)
		if landed == 4 {
			require.NotEmpty(t, p.take(), "it is answered")
			return
		}
		require.Empty(t, p.take(), "after %d answers of the store", landed)
		p.Close()
		answer(20)
		b.store.bend = nil
		require.Zero(t, b.inspect(q).Used, "closed after %d answers of the store", landed)
	}
}

// TestDrain: a service that stops answers what it has taken, and takes no more.
func TestDrain(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	answer := b.slow()
	require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(8)}}}}))
	drained := make(chan struct{})
	go func() {
		b.service.Drain(t.Context())
		close(drained)
	}()
	require.Eventually(t, func() bool {
		b.service.mu.Lock()
		defer b.service.mu.Unlock()
		return b.service.core.draining
	}, 5e9, 1e6)
	require.Equal(t, codes.Unavailable, status.Code(p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(1)}}}})))
	select {
	case <-drained:
		require.Fail(t, "an ask is open")
	default:
	}
	for range 4 {
		answer(1)
	}
	<-drained
	require.Len(t, p.take(), 1)
	_, err := b.service.Open(Peer{}, nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// beginDrain begins a drain, and returns what reports whether it has ended.
func (b *rig) beginDrain() (hasEnded func() bool) {
	gone, leave := context.WithCancel(b.t.Context())
	leave()
	b.service.Drain(gone)
	return func() bool {
		select {
		case <-b.service.core.drained:
			return true
		default:
			return false
		}
	}
}

// usedNow is what is used of a key by what the store has.
func (b *rig) usedNow(d quota.Definition) uint32 {
	found, err := b.service.Operate(b.t.Context(), "d", d, [16]byte{}, &action.Inspect{})
	require.NoError(b.t, err)
	return found.Standings[0].Used
}

// TestDrainWaitsForReturns: also for those that come with a message which is refused, because the service drains. The
// units would count until their window ends.
func TestDrainWaitsForReturns(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(10, minute))
	p := b.proxy(b.service, d)
	first, second := p.ask(want(4)).Grants[0].Number, p.ask(want(3)).Grants[0].Number
	answer := b.slow()
	p.giveBack(first, 4)
	hasEnded := b.beginDrain()
	require.False(t, hasEnded())
	err := p.send(quota.Asks{Returns: []quota.Return{{Grant: second, Units: 2}}})
	require.Equal(t, codes.Unavailable, status.Code(err))
	p.Close()
	answer(1)
	require.False(t, hasEnded(), "the second return waits for the first")
	answer(1)
	require.True(t, hasEnded())
	b.store.bend = nil
	require.EqualValues(t, 1, b.usedNow(d))
}

// TestDrainWaitsForUndosOfAClosedStream: its hits may be under way, and are undone.
func TestDrainWaitsForUndosOfAClosedStream(t *testing.T) {
	b := newRig(t)
	d := define(1, quota.LeaseOff, fixed(10, minute))
	p := b.proxy(b.service, d)
	b.inspect(p) // by now the service knows the store's clock
	answer := b.slow()
	require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(4)}}}}))
	p.Close()
	hasEnded := b.beginDrain()
	for range 2 { // the hit and its undo
		require.False(t, hasEnded())
		answer(1)
	}
	require.True(t, hasEnded())
	b.store.bend = nil
	require.Zero(t, b.usedNow(d))
}

// TestDrainEndsWithAsksThatAreAnsweredAtOnce: once the stream reads, the last ones begin and end in one turn.
func TestDrainEndsWithAsksThatAreAnsweredAtOnce(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service)
	var m quota.Asks
	for range maxUnderWay + 1 {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{{Definition: 1, Inspect: true}}}) // it is Unknown
	}
	require.NoError(t, p.send(m))
	hasEnded := b.beginDrain()
	require.False(t, hasEnded(), "it may still be read")
	require.Len(t, p.take(), maxUnderWay+1)
	require.True(t, hasEnded())
}

// TestDrainLeavesUnread: asks that wait for a stream to read its answers do not hold up the end.
func TestDrainLeavesUnread(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseOff, fixed(10, minute)))
	var m quota.Asks
	for range maxUnderWay + 1 {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{{Definition: 1, Inspect: true}}})
	}
	require.NoError(t, p.send(m))
	drained := make(chan struct{})
	go func() {
		b.service.Drain(t.Context())
		close(drained)
	}()
	require.Eventually(t, b.service.Draining, 5e9, 1e6)
	select {
	case <-drained:
		require.Fail(t, "it may still be read")
	default:
	}
	b.clock.advance(int64(LastWithin))
	<-drained
}

// TestProxies: answers carry how many processes of the domain are alive.
func TestProxies(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	q, err := b.service.Open(Peer{}, func() {})
	require.NoError(t, err)
	require.NoError(t, q.Receive((&quota.Asks{Domain: "d", Process: 2}).Append(nil)))
	b.clock.advance(0)
	require.EqualValues(t, 2, p.proxies())
	q.Close()
	b.clock.advance(11 * second)
	b.service.NoteProcesses()
	require.EqualValues(t, 1, p.proxies())
}

// TestALateAnswerLowersNoProxies: two processes come, and the store's answer to the first one comes last.
func TestALateAnswerLowersNoProxies(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	b.store.told = func(n int) {
		if n == 1 {
			b.service.noteAlive(p.worker.domain, 2)
		}
	}
	b.clock.advance(0)
	require.EqualValues(t, 2, p.proxies())
}

func (p *proxy) proxies() uint32 {
	require.NoError(p.t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(1)}}}}))
	b, _ := p.Next()
	p.Sent()
	var m quota.Results
	require.NoError(p.t, m.Decode(b))
	return m.Proxies
}

// A transport may hand over a message that came just before its stream was closed. It makes no domain that nobody ends.
func TestAMessageAfterTheEndOfItsStream(t *testing.T) {
	b := newRig(t)
	st, err := b.service.Open(Peer{Address: "it"}, func() {})
	require.NoError(t, err)
	st.Close()
	require.NoError(t, st.Receive((&quota.Asks{Domain: "d", Process: 1}).Append(nil)))
	b.service.mu.Lock()
	defer b.service.mu.Unlock()
	require.Empty(t, b.service.core.domains)
}

// An ask in such a message takes no units: others would be denied them until they are uncounted.
func TestAnAskAfterTheEndOfItsStream(t *testing.T) {
	b := newRig(t)
	p := b.proxy(b.service, define(1, quota.LeaseAuto, fixed(10, minute)))
	p.ask(want(1))
	p.Close()
	before := b.store.swaps.Load()
	require.NoError(t, p.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{want(8)}}}}))
	require.Equal(t, before, b.store.swaps.Load())
}
