package xds

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

func TestNoBinaryIsSaid(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.o.Wasm = ""
		f.restart()
		number := f.apply("one")
		f.proxy("e1")
		require.Contains(t, f.status("e1").Problem, "--wasm")
		unsent := ProxyOutcome{Node: "e1", Revision: 1, Outcome: Unsent, Text: f.status("e1").Problem}
		require.Equal(t, []ProxyOutcome{unsent}, f.outcomes(number))
	})
}

func TestFollowReportsEachOutcomeOnce(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		require.Empty(t, f.outcomes(f.apply("one")), "no proxy is connected")
		a, b := f.proxy("a"), f.proxy("b")
		c := f.proxy("c")
		accept("one", a, b, c)
		reports, missing := make(chan ProxyOutcome, 10), make(chan []ProxyOutcome, 1)
		follow := func(number uint64) (leave func()) {
			ctx, leave := context.WithCancel(t.Context())
			go func() { missing <- f.ledger.Follow(ctx, number, func(v ProxyOutcome) { reports <- v }) }()
			return leave
		}
		two := f.apply("two")
		leave := follow(two)
		b.refuse("two", "one")
		require.Equal(t, ProxyOutcome{
			Node: "b", Revision: 2, Outcome: Nacked, Text: "Unable to create Wasm plugin sluice", Fallback: 1,
		}, <-reports)
		accept("two", a)
		require.Equal(t, ProxyOutcome{Node: "a", Revision: 2, Outcome: Acked}, <-reports)
		c.expect("two")
		c.hangUp()
		time.Sleep(2 * lookEvery)
		leave()
		require.Equal(t, []ProxyOutcome{{Node: "c", Revision: 2, Outcome: Disconnected}}, <-missing)
		require.Empty(t, reports)

		// One that never got the revision because the next was there already is told apart.
		c.connect()
		c.expect("two")
		three := f.apply("three")
		f.apply("four")
		follow(three)
		c.reconnect()
		accept("four", c)
		accept("three", a, b)
		require.Empty(t, <-missing)
		outcomes := map[string]Outcome{}
		for range 3 {
			v := <-reports
			outcomes[v.Node] = v.Outcome
		}
		require.Equal(t, map[string]Outcome{"a": Acked, "b": Acked, "c": Superseded}, outcomes)
	})
}

func TestAProxyThatIsGoneIsForgotten(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		e, stays := f.proxy("e1"), f.proxy("stays")
		accept("one", e, stays)
		e.hangUp()
		time.Sleep(forgetAfter / 2)
		require.Len(t, f.ledger.Proxies(), 2)
		time.Sleep(forgetAfter)
		require.Len(t, f.ledger.Proxies(), 1)
		known, err := f.store.Proxies(t.Context())
		require.NoError(t, err)
		require.Len(t, known, 1)
	})
}

// Node ids are the proxies' to make up: neither the ledger nor the store grows
// with them.
func TestMemoryIsBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		f.ledger.maxProxies = 3
		accept("one", f.proxy("stays"))
		for i := range 10 {
			e := f.proxy(fmt.Sprint("passing-", i))
			accept("one", e)
			time.Sleep(time.Second)
			e.hangUp()
		}
		ids := func() (ids []string) {
			for _, p := range f.ledger.Proxies() {
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
		require.Equal(t, []string{"second", "stays", "third"}, ids())
	})
}

// In a fleet that replies all at once, each reply counts for its own revision.
func TestRepliesOfAFleetCountForTheirRevisions(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		const revisions = 10
		var fleet sync.WaitGroup
		quit := make(chan struct{})
		for i := range 20 {
			p := f.proxy(fmt.Sprint("e", i))
			fleet.Go(func() {
				for {
					select {
					case <-quit:
						return
					case pushed := <-p.stream.got:
						r := unmarshal(t, pushed)
						number, _, _ := f.held(r.GetSystemVersionInfo())
						p.stream.requests <- request{typeURL: TypeURL, nonce: r.GetNonce(), refused: number%3 == 0}
					}
				}
			})
		}
		for i := range revisions {
			f.apply(fmt.Sprint("r", i))
		}
		close(quit)
		fleet.Wait()
		for _, p := range f.ledger.Proxies() {
			require.Equal(t, uint64(revisions), p.Runs)
			require.Zero(t, p.Nacked%3)
		}
		history, err := f.store.History(t.Context(), "", 0)
		require.NoError(t, err)
		for _, s := range history {
			require.Equal(t, []bool{s.Number%3 != 0, s.Number%3 == 0}, []bool{s.Acked, s.Nacked}, "revision %d", s.Number)
		}
	})
}

func TestManagedListsEachProcessOnce(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		connect := func(id, address string) *proxyClient {
			e := f.named(id)
			e.node.Metadata = metadata(t, map[string]any{"manage": address})
			e.connect()
			accept("one", e)
			return e
		}
		first := connect("a", "127.0.0.1:9902")
		connect("a", "127.0.0.1:9902")          // its hot restart
		other := connect("a", "127.0.0.2:9902") // another one with the same id
		connect("b", "")
		managed := func(id, address, peer string) Managed {
			return Managed{Node: id, Policy: "default", Address: address, Peer: peer, Runs: 1}
		}
		restarted, b := managed("a", "127.0.0.1:9902", "127.0.0.1:2"), managed("b", "", "127.0.0.1:4")
		require.Equal(t, []Managed{managed("a", "127.0.0.2:9902", "127.0.0.1:3"), restarted, b}, f.ledger.Managed())
		first.hangUp()
		other.hangUp()
		require.Equal(t, []Managed{restarted, b}, f.ledger.Managed(), "the hot restart alone is left")
	})
}

func TestTwoProcessesOfOneIdentity(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		here, child := f.proxy("e1"), f.proxy("e1")
		there := f.named("e1")
		time.Sleep(time.Hour)
		require.Empty(t, f.status("e1").Processes, "one process with two streams")
		there.peer.Addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
		there.connect()
		time.Sleep(overlap - time.Second)
		require.Empty(t, f.status("e1").Processes, "one takes over from the other")
		time.Sleep(time.Second)
		f.state("e1", "2 processes: 127.0.0.1, 127.0.0.2")
		here.hangUp()
		child.hangUp()
		require.Empty(t, f.status("e1").Processes)
	})
}

func TestStateOfAProxyThatAsksForSomethingElse(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		e := f.named("e1")
		e.names = []string{"slice", "two"}
		e.connect()
		st := f.state("e1", `asks for what is not served (only "sluice" is): "slice"`)
		require.Equal(t, e.names, st.Unserved)
		require.Equal(t, 1, f.ledger.Behind())
		require.Equal(t, []ProxyOutcome{{Node: "e1", Revision: 1, Outcome: Unsent, Text: st.State}}, f.outcomes(1))
		e.asks(nil, []string{"slice"})
		f.state("e1", `asks for what is not served (only "sluice" is): "two"`)
		e.asks([]string{envoy.ResourceName}, nil)
		accept("one", e)
		f.runs("e1", 1)
		f.state("e1", `asks for what is not served (only "sluice" is): "two"`)
		e.asks(nil, []string{"two"})
		f.state("e1", "connected")
		e.asks(nil, []string{envoy.ResourceName})
		f.state("e1", "asks for no policy")
		f.apply("two")
		idle(e)
		for range 2 { // a proxy that subscribes again gets it again
			e.asks([]string{envoy.ResourceName}, nil)
			accept("two", e)
		}
		for _, letter := range strings.Split("abcdefghijkl", "") { // what is kept of names is bounded
			e.asks([]string{strings.Repeat(letter, 1000), letter}, nil)
		}
		require.Len(t, f.status("e1").Unserved, maxUnserved)
	})
}

func TestStateOfAProxyWithoutAPolicy(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		stranger := f.named("e3") // a process that has a policy of another server is not without one
		stranger.version = "7-a-0123456789abcdef"
		stranger.connect()
		f.state("e3", "runs a policy that is not served here")
		e := f.proxy("e1")
		f.apply("bad")
		e.nack(e.expect("bad"))
		f.state("e1", "refused revision 1, "+noPolicy)
		f.proxy("e2") // is not asked
		f.state("e2", noPolicy)
		require.Zero(t, f.ledger.ForNewProxy(store.DefaultPolicy))
	})
}

// A second stream, for another name, does not hide what the first one runs.
func TestStateOfTwoStreams(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		accept("one", f.proxy("e1"))
		other := f.named("e1")
		other.names = []string{"slice"}
		other.connect()
		st := f.state("e1", `asks for what is not served (only "sluice" is): "slice"`)
		f.runs("e1", 1)
		require.Equal(t, 1, f.ledger.Behind())
		require.Equal(t, []ProxyOutcome{{Node: "e1", Revision: 1, Outcome: Acked, Text: st.State}}, f.outcomes(1))
		other.asks(nil, []string{"slice"})
		f.state("e1", "connected, 2 streams")
		f.runs("e1", 1)
		require.Zero(t, f.ledger.Behind())
	})
}

func TestRefusalsThatMatter(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		e := f.proxy("e1")
		accept("one", e)
		f.apply("two")
		e.refuse("two", "one")
		require.Equal(t, uint64(1), f.ledger.ForNewProxy(store.DefaultPolicy), "a refused revision is not current")
		f.apply("three")
		accept("three", e)
		st := f.state("e1", "connected")
		require.Equal(t, store.Proxy{Node: "e1", Acked: 3, AckedAt: st.AckedAt, Refused: []uint64{}}, st.Proxy)
		f.apply("four")
		e.nack(e.expect("four"))
		e.nack(e.expect("three"))
		f.state("e1", "refused revision 3, left alone until the next")
		f.runs("e1", 3) // Envoy keeps what it runs
		idle(e)
		f.apply("five")
		e.refuse("five", "one") // a new revision is counted anew
	})
}
