package xds

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNoBinaryIsSaid(t *testing.T) {
	f := newFixture(t)
	f.wasm = ""
	f.restart()
	number := f.apply("one")
	f.proxy("e1")
	f.eventually("problem noted", func() bool { return strings.Contains(f.status("e1").Problem, "--wasm") })
	var got []ProxyOutcome
	require.Empty(t, f.server.Ledger().Follow(t.Context(), number, func(v ProxyOutcome) { got = append(got, v) }))
	require.Len(t, got, 1)
	require.Equal(t, Unsent, got[0].Outcome)
}

func TestFollow(t *testing.T) {
	f := newFixture(t)
	l := f.server.Ledger()
	require.Empty(t, l.Follow(t.Context(), f.apply("one"), func(ProxyOutcome) { require.Fail(t, "no proxy is connected") }))

	a, b, c := f.proxy("a"), f.proxy("b"), f.proxy("c")
	for _, p := range []*proxyClient{a, b, c} {
		p.accept("one")
	}
	f.eventually("all run it", func() bool {
		return f.status("a").Acked == 1 && f.status("b").Acked == 1 && f.status("c").Acked == 1
	})
	two := f.apply("two")
	ctx, cancel := context.WithCancel(t.Context())
	reports, missing := make(chan ProxyOutcome, 10), make(chan []ProxyOutcome, 1)
	go func() { missing <- l.Follow(ctx, two, func(v ProxyOutcome) { reports <- v }) }()

	b.refuse("two")
	b.accept("one")
	require.Equal(t, ProxyOutcome{Node: "b", Revision: 2, Outcome: Nacked, Text: "Unable to create Wasm plugin sluice", Fallback: 1}, <-reports)
	a.accept("two")
	require.Equal(t, ProxyOutcome{Node: "a", Revision: 2, Outcome: Acked}, <-reports)
	c.expect("two")
	c.hangUpAndWait()
	cancel()
	require.Equal(t, []ProxyOutcome{{Node: "c", Revision: 2, Outcome: Disconnected}}, <-missing)
	require.Empty(t, reports)

	// The one that was away comes back and answers; one that never got the
	// revision because the next was there already is told apart.
	c.connect()
	c.expect("two")
	three := f.apply("three")
	four := f.apply("four")
	done := make(chan []ProxyOutcome, 1)
	go func() { done <- l.Follow(t.Context(), three, func(v ProxyOutcome) { reports <- v }) }()
	for _, p := range []*proxyClient{a, b} {
		p.drainTo(four)
	}
	c.hangUpAndWait()
	c.connect()
	c.drainTo(four)
	require.Empty(t, <-done)
	outcomes := map[string]Outcome{}
	for range 3 {
		v := <-reports
		outcomes[v.Node] = v.Outcome
	}
	require.Equal(t, Superseded, outcomes["c"])
}

func (p *proxyClient) drainTo(number uint64) {
	p.f.t.Helper()
	p.f.eventually("caught up", func() bool {
		select {
		case r := <-p.got:
			p.ack(r)
		default:
		}
		return p.f.status(p.node.GetId()).Acked == number
	})
}

func TestForget(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e, stays := f.proxy("e1"), f.proxy("stays")
	e.accept("one")
	stays.accept("one")
	f.eventually("booked", func() bool { return f.status("e1").Acked == 1 && f.status("stays").Acked == 1 })
	e.hangUpAndWait()
	l := f.server.Ledger()
	require.NoError(t, l.forget(t.Context(), time.Now().Add(forgetAfter/2)))
	require.Len(t, l.Proxies(), 2)
	require.NoError(t, l.forget(t.Context(), time.Now().Add(2*forgetAfter)))
	require.Len(t, l.Proxies(), 1)
	known, err := f.store.Proxies(t.Context())
	require.NoError(t, err)
	require.Len(t, known, 1)
}

// Node ids are the proxies' to make up: neither the ledger nor the store grows
// with them.
func TestMemoryIsBounded(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	l := f.server.Ledger()
	l.mu.Lock()
	l.maxStreams, l.maxStreamsOf = 3, 3
	l.mu.Unlock()
	stays := f.proxy("stays")
	stays.accept("one")
	for i := range 10 {
		id := fmt.Sprint("passing-", i)
		e := f.proxy(id)
		e.accept("one")
		f.eventually("booked", func() bool { return f.status(id).Acked == 1 })
		e.hangUpAndWait()
	}
	ids := func() (ids []string) {
		for _, p := range l.Proxies() {
			ids = append(ids, p.Node)
		}
		return ids
	}
	require.Equal(t, []string{"passing-8", "passing-9", "stays"}, ids())
	known, err := f.store.Proxies(t.Context())
	require.NoError(t, err)
	require.Len(t, known, 3)

	f.proxy("second")
	f.proxy("third")
	f.eventually("as many as may be", func() bool { return l.Connected("") == 3 })
	require.Equal(t, []string{"second", "stays", "third"}, ids())
	require.ErrorContains(t, l.admit("elsewhere"), "3 streams are open, no more are served")
}

func TestFleet(t *testing.T) {
	f := newFixture(t)
	const proxies, revisions = 20, 10
	bad := func(number int) bool { return number%3 == 0 }
	var wg sync.WaitGroup
	clients := make([]*proxyClient, proxies)
	for i := range clients {
		clients[i] = f.proxy(fmt.Sprint("e", i))
	}
	said := make([]map[string]bool, proxies)
	quit := make(chan struct{})
	for i, c := range clients {
		said[i] = map[string]bool{}
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				case r := <-c.got:
					var number int
					tag := revisionStamp(t, r)
					if _, err := fmt.Sscanf(tag, "%d-", &number); err != nil {
						t.Errorf("tag %q", tag)
						return
					}
					if bad(number) {
						c.nack(r)
					} else {
						c.ack(r)
					}
					said[i][tag] = !bad(number)
				}
			}
		})
	}
	for i := range revisions {
		f.apply(fmt.Sprint("r", i))
	}
	for i := range clients {
		f.eventually("at the end", func() bool { s := f.status(fmt.Sprint("e", i)); return s.Acked == revisions && !s.Waiting })
	}
	close(quit)
	wg.Wait()
	history, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	for _, s := range history {
		require.False(t, bad(int(s.Number)) && s.Acked, "revision %d", s.Number)
		require.False(t, !bad(int(s.Number)) && s.Nacked, "revision %d", s.Number)
	}
	for i := range clients {
		st := f.status(fmt.Sprint("e", i))
		require.True(t, st.Nacked == 0 || bad(int(st.Nacked)))
	}
}
