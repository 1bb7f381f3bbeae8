package xds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
)

func TestReconnect(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	e.accept("one")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 1 })

	t.Run("what it holds is not sent again", func(t *testing.T) {
		e.hangUpAndWait()
		e.connect()
		e.nothingMore()
		require.Equal(t, uint64(1), f.status("e1").Acked)
	})
	t.Run("not after a restart of the server either", func(t *testing.T) {
		e.hangUpAndWait()
		f.restart()
		st := f.status("e1")
		require.False(t, st.Connected)
		require.Equal(t, uint64(1), st.Acked, "answers survive")
		e.connect()
		e.nothingMore()
	})
	t.Run("a new revision is", func(t *testing.T) {
		e.hangUpAndWait()
		f.apply("two")
		e.connect()
		e.accept("two")
		f.eventually("booked", func() bool { return f.status("e1").Acked == 2 })
	})
	t.Run("so is the same one with another binary", func(t *testing.T) {
		e.hangUpAndWait()
		f.wasm = "/other.wasm"
		f.restart()
		e.connect()
		r := e.expect("two")
		require.Equal(t, "/other.wasm", wasmIn(t, r))
		e.ack(r)
	})
	t.Run("an answer lost with the connection is made up for", func(t *testing.T) {
		f.apply("three")
		r := e.expect("three")
		e.version = r.GetResources()[0].GetVersion() // accepted, and never said so
		e.hangUpAndWait()
		require.Equal(t, uint64(2), f.status("e1").Acked)
		e.connect()
		f.eventually("booked", func() bool { return f.status("e1").Acked == 3 })
		e.nothingMore()
	})
	t.Run("a refusal lost with the connection is given again", func(t *testing.T) {
		f.apply("four")
		e.expect("four") // refused, and never said so
		e.hangUpAndWait()
		e.connect()
		e.refuse("four")
		e.accept("three")
		f.eventually("booked", func() bool { s := f.status("e1"); return s.Nacked == 4 && !s.Waiting })
	})
	t.Run("a refused revision is not tried again", func(t *testing.T) {
		e.hangUpAndWait()
		e.connect()
		e.nothingMore()
		e.hangUpAndWait()
		f.restart()
		e.connect()
		e.nothingMore()
	})
	t.Run("a withdrawal that was not confirmed is sent again", func(t *testing.T) {
		f.apply("five")
		e.refuse("five")
		e.expect("three")
		e.hangUpAndWait()
		e.connect()
		e.accept("three")
	})
}

func TestMixedAnswers(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	a, b := f.proxy("a"), f.proxy("b")
	a.accept("one")
	b.accept("one")
	f.eventually("both run it", func() bool { return f.status("a").Acked == 1 && f.status("b").Acked == 1 })

	f.apply("two")
	b.refuse("two") // first, before a has answered
	b.accept("one")
	pushed := a.expect("two")
	early := f.proxy("early")
	early.accept("one") // withheld: refused by some, accepted by none so far
	a.ack(pushed)
	early.accept("two") // and lifted by the first acceptance
	late := f.proxy("late")
	late.accept("two")
	f.eventually("all answered", func() bool { return f.status("late").Acked == 2 && f.status("early").Acked == 2 })
	require.Equal(t, uint64(2), f.status("a").Acked)
	require.Equal(t, uint64(0), f.status("a").Nacked)
	require.Equal(t, uint64(1), f.status("b").Acked)
	require.Equal(t, uint64(2), f.status("b").Nacked)
	b.nothingMore()

	// Its process starts anew: what was wrong may have been repaired.
	b.hangUpAndWait()
	b.version = ""
	b.connect()
	b.accept("two")
	f.eventually("accepted now", func() bool { return f.status("b").Acked == 2 })
}

func TestResubscribingGetsItAgain(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	e.accept("one")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 1 })
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		r.TypeUrl = TypeURL
		require.NoError(t, e.stream.Send(r))
	}
	send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{envoy.ResourceName}})
	f.eventually("unsubscribed", func() bool { return !f.subscribed("e1") })
	f.apply("two")
	e.nothingMore()
	send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{envoy.ResourceName}})
	e.accept("two")
	send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{envoy.ResourceName}})
	e.accept("two")
	send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"another"}})
	e.nothingMore()
}

func TestRefusedRevisionAfterRestart(t *testing.T) {
	f := newFixture(t)
	f.apply("good")
	e := f.proxy("e1")
	e.accept("good")
	f.apply("bad")
	e.refuse("bad")
	e.accept("good")
	f.eventually("settled", func() bool { s := f.status("e1"); return s.Nacked == 2 && !s.Waiting })

	f.restart()
	fresh := f.proxy("e2")
	fresh.accept("good")
	fresh.nothingMore()
	e.connect()
	e.nothingMore()
	require.Equal(t, uint64(1), f.status("e1").Runs, "it said so itself")
	// The process that refused it starts anew, and gets what is good as well.
	e.hangUpAndWait()
	e.version = ""
	e.connect()
	r := e.expect("good")
	require.Zero(t, f.status("e1").Runs, "this process has not accepted anything yet")
	e.ack(r)
	f.eventually("accepted", func() bool { return f.status("e1").Runs == 1 })
	e.nothingMore()
}
