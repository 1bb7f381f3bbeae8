package xds

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A node id's rank never changes, ranks are spread evenly, and a higher percentage reaches
// all that a lower one does.
func TestRank(t *testing.T) {
	for node, want := range map[string]float64{"edge-1": 87.25, "edge-2": 64.79, "edge-3": 92.39} {
		require.InDelta(t, want, rank(node), 0.01, node)
	}
	reached := map[float64]int{}
	percents := []float64{0.1, 1, 10, 50, 99.9, 100}
	for i := range 20_000 {
		node, before := fmt.Sprintf("proxy-%d.edge", i), false
		for _, percent := range percents {
			now := reaches(&store.Rollout{Percent: percent}, node)
			require.False(t, before && !now, "%s at %g", node, percent)
			if before = now; now {
				reached[percent]++
			}
		}
	}
	for _, percent := range percents {
		require.InDelta(t, 200*percent, reached[percent], 150, "%g %%", percent)
	}
	require.True(t, reaches(&store.Rollout{Node: "edge-1"}, "edge-1"))
	require.False(t, reaches(&store.Rollout{Percent: 100}, ""), "no proxy has that node id")
}

// nodes are node ids, with ranks in ascending order.
func nodes(t *testing.T, n int) (list []string) {
	t.Helper()
	for i := range n {
		for j := 0; len(list) == i; j++ {
			if node := fmt.Sprintf("n%d-%d", i, j); int(rank(node)*float64(n)/100) == i {
				list = append(list, node)
			}
		}
	}
	return list
}

// canary is apply for some of the proxies.
func (f *fixture) canary(domain string, percent float64) uint64 {
	f.t.Helper()
	r, err := add(f.t.Context(), f.store, store.Draft{
		YAML: []byte(domain), JSON: []byte(`{"version":1,"domain":"` + domain + `"}`),
		Rollout: &store.Rollout{Percent: percent, Node: f.server.Ledger().Choose("default", percent), State: store.Canary},
	})
	require.NoError(f.t, err)
	f.refreshed()
	return r.Number
}

func (f *fixture) step(number uint64, state store.RolloutState) {
	f.t.Helper()
	last, err := f.store.Last(f.t.Context())
	require.NoError(f.t, err)
	_, err = f.store.Append(f.t.Context(), store.Change{Last: last, Steps: []store.Step{{Revision: number, State: state}}})
	require.NoError(f.t, err)
	f.refreshed()
}

func (f *fixture) refreshed() {
	f.t.Helper()
	require.NoError(f.t, f.server.Refresh(f.t.Context()))
}

// kill starts a server on what the disk has, as after kill -9, and has the proxies come back.
func (f *fixture) kill(proxies ...*proxyClient) {
	f.t.Helper()
	left := f.t.TempDir()
	require.NoError(f.t, os.CopyFS(left, os.DirFS(f.dir)))
	for _, p := range proxies {
		p.hangUp()
	}
	f.stop()
	f.dir = left
	f.start()
	for _, p := range proxies {
		p.connect()
	}
}

func (f *fixture) outcomes(number uint64) map[string]Outcome {
	f.t.Helper()
	got := map[string]Outcome{}
	require.Empty(f.t, f.server.Ledger().Follow(f.t.Context(), number, func(o ProxyOutcome) { got[o.Node] = o.Outcome }))
	return got
}

// Only the proxies of a canary get it, and those that come get what their rank says, also
// after a kill at any point. An abort concerns nobody else, and promote takes the rest along.
func TestCanary(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			f, ids := newFixture(t), nodes(t, 4)
			f.apply("one")
			first, second, last := f.proxy(ids[0]), f.proxy(ids[1]), f.proxy(ids[3])
			all := []*proxyClient{first, second, last}
			for _, p := range all {
				p.accept("one")
			}
			settled := func(what string, runs ...uint64) {
				f.eventually(what, func() bool {
					now := make([]uint64, len(all))
					for i, p := range all {
						now[i] = f.status(p.node.GetId()).Runs
					}
					return fmt.Sprint(now) == fmt.Sprint(runs)
				})
				if killed {
					f.kill(all...)
				}
				for _, p := range all {
					p.nothingMore()
				}
			}
			settled("all run it", 1, 1, 1)

			two := f.canary("two", 25)
			if killed {
				f.kill(all...)
			}
			first.accept("two")
			settled("one runs the canary", two, 1, 1)
			f.state(ids[0], "connected, in the canary")
			f.state(ids[3], "connected")
			require.Zero(t, f.server.Ledger().Behind())
			require.Equal(t, uint64(1), f.server.Ledger().Current("default"))
			require.Equal(t, map[string]Outcome{ids[0]: Acked}, f.outcomes(two), "the others are not waited for")
			number, c := f.server.Ledger().Canary("default")
			require.Equal(t, two, number)
			require.Equal(t, []int{1, 1}, []int{c.Connected, c.Runs})
			came := f.proxy(ids[2])
			came.accept("one")
			came.hangUpAndWait()

			f.step(two, store.Aborted)
			if killed {
				f.kill(all...)
			}
			first.accept("one")
			settled("all are back", 1, 1, 1)
			require.Equal(t, map[string]Outcome{ids[0]: Acked, ids[1]: Acked, ids[3]: Acked}, f.outcomes(1))
			number, _ = f.server.Ledger().Canary("default")
			require.Zero(t, number)

			three := f.canary("three", 50)
			if killed {
				f.kill(all...)
			}
			first.accept("three")
			second.accept("three")
			settled("two run the canary", three, three, 1)
			f.step(three, store.Promoted)
			if killed {
				f.kill(all...)
			}
			last.accept("three")
			settled("all run it", three, three, three)
			require.Equal(t, three, f.server.Ledger().Current("default"))
		})
	}
}

// A proxy that waits for its abort is waited for, though it has accepted the revision once.
func TestAbortIsFollowed(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	p := f.proxy("p")
	p.accept("one")
	f.eventually("it runs", func() bool { return f.status("p").Runs == 1 })
	two := f.canary("two", 0.001)
	_, c := f.server.Ledger().Canary("default")
	require.Equal(t, "p", c.Node, "at least one is in it")
	held := p.expect("two")
	f.step(two, store.Aborted)
	require.Equal(t, map[string]Outcome{"p": Superseded}, func() map[string]Outcome { p.ack(held); return f.outcomes(two) }())
	back := p.expect("one")
	done := make(chan map[string]Outcome, 1)
	go func() { done <- f.outcomes(1) }()
	select {
	case <-done:
		require.Fail(t, "it has not answered yet")
	default:
	}
	p.ack(back)
	require.Equal(t, map[string]Outcome{"p": Acked}, <-done)
}

// What a proxy of the canary refuses is withdrawn from it, and nobody else gets it.
func TestRefusedCanary(t *testing.T) {
	f, ids := newFixture(t), nodes(t, 2)
	f.apply("one")
	first, last := f.proxy(ids[0]), f.proxy(ids[1])
	first.accept("one")
	last.accept("one")
	two := f.canary("two", 50)
	first.refuse("two")
	first.accept("one")
	last.nothingMore()
	require.Equal(t, map[string]Outcome{ids[0]: Nacked}, f.outcomes(two))
	_, c := f.server.Ledger().Canary("default")
	require.Equal(t, []string{ids[0]}, c.Refused)
	require.Equal(t, []int{1, 0}, []int{c.Connected, c.Runs})
	f.step(two, store.Aborted)
	first.nothingMore()
	f.apply("three")
	first.accept("three")
	last.accept("three")
}

// An aborted revision ages out with its neighbors.
func TestAbortedRevisionAgesOut(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.keep = 2
	f.start()
	f.apply("one")
	f.step(f.canary("two", 10), store.Aborted)
	f.apply("three")
	f.apply("four")
	f.eventually("it is dropped", func() bool {
		list, err := f.store.History(t.Context(), "", 0)
		return err == nil && len(list) == 2 && list[0].Number == 4 && list[1].Number == 3
	})
}

// A proxy that ran a canary and went away is not one that did well.
func TestCanaryKnowsWhoIsGone(t *testing.T) {
	f, ids := newFixture(t), nodes(t, 2)
	f.apply("one")
	first, second := f.proxy(ids[0]), f.proxy(ids[1])
	first.accept("one")
	second.accept("one")
	number := f.canary("two", 99)
	first.accept("two")
	second.accept("two")
	canary := func() Canary { _, c := f.server.Ledger().Canary("default"); return c }
	f.eventually("both run it", func() bool { return canary().Runs == 2 })
	require.Empty(t, canary().Gone)
	second.hangUpAndWait()
	require.Equal(t, ids[1:], canary().Gone)
	second.connect()
	f.eventually("it is back", func() bool { return len(canary().Gone) == 0 })
	require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "elsewhere", Revision: number}))
	f.refreshed()
	require.True(t, canary().Nacked)
}

// A proxy of two filters runs a canary once both do.
func TestCanaryOfTwoFilters(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	both := []*proxyClient{f.proxy("p"), f.proxy("p")}
	for _, p := range both {
		p.accept("one")
	}
	f.canary("two", 99)
	runs := func() int { _, c := f.server.Ledger().Canary("default"); return c.Runs }
	both[0].accept("two")
	both[0].nothingMore()
	require.Zero(t, runs())
	both[1].accept("two")
	f.eventually("it runs", func() bool { return runs() == 1 })
}
