package xds

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A node id's rank never changes, ranks are spread evenly, and a higher percentage reaches
// all that a lower one does.
func TestRanksNeverChange(t *testing.T) {
	for node, want := range map[string]float64{"edge-1": 87.25, "edge-2": 64.79, "edge-3": 92.39} {
		require.InDelta(t, want, rank(node), 0.01, node)
	}
	for _, percent := range []float64{0.1, 1, 10, 50, 99.9, 100} {
		reached := 0
		for i := range 20_000 {
			node := fmt.Sprintf("proxy-%d.edge", i)
			is := reaches(&store.Rollout{Percent: percent}, node)
			require.False(t, is && !reaches(&store.Rollout{Percent: percent + 1}, node))
			if is {
				reached++
			}
		}
		require.InDelta(t, 200*percent, reached, 150, "%g %%", percent)
	}
	some := &store.Rollout{Percent: 90, Except: []string{"edge-1", "edge-3"}}
	require.True(t, reaches(some, "edge-2") && reaches(some, "edge-3"))
	require.False(t, reaches(some, "edge-1"))
	require.False(t, reaches(&store.Rollout{Percent: 100}, ""), "no proxy has that node id")
}

// A canary has its share of the connected proxies, rounded up: those with the lowest ranks. At
// least one is in it, and below 100 % at least one is not, if there are two.
func TestCanaryHasItsShare(t *testing.T) {
	ids := func(ranks ...float64) (list []string) {
		for i, want := range ranks {
			for j := 0; len(list) == i; j++ {
				if node := fmt.Sprintf("n%d-%d", i, j); int(rank(node)) == int(want) {
					list = append(list, node)
				}
			}
		}
		return list
	}
	low, high := ids(1, 2, 3, 4), ids(95, 96, 97, 98)
	even := ids(12, 37, 62, 87)
	for _, tc := range []struct {
		nodes   []string
		percent float64
		want    int
	}{
		{even, 10, 1}, {even, 25, 1}, {even, 26, 2}, {even, 50, 2}, {even, 90, 3}, {even, 100, 4},
		{low, 10, 1}, {low, 50, 2}, {low, 99.9, 3}, {low, 100, 4},
		{high, 0.001, 1}, {high, 50, 2}, {high, 75, 3}, {high, 76, 3}, {high, 100, 4},
		{low[:1], 1, 1}, {high[:1], 1, 1}, {high[:2], 99, 1}, {nil, 50, 0},
		{slices.Concat(low, low[:1], high), 50, 4},                      // the same node id twice is one proxy
		{nodes(30), 10, 3}, {nodes(10), 70, 7}, {nodes(250), 64.4, 161}, // which floats make 161.00000000000003
	} {
		r := &store.Rollout{Percent: tc.percent, Except: except(tc.nodes, tc.percent)}
		var in []string
		for _, node := range slices.Compact(slices.Sorted(slices.Values(tc.nodes))) {
			if reaches(r, node) {
				in = append(in, node)
			}
		}
		require.Len(t, in, tc.want, "%v %g %%", tc.nodes, tc.percent)
		for _, node := range tc.nodes {
			require.Equal(t, rank(node) <= rank(slices.MaxFunc(in, byRank)), reaches(r, node), "%v %g %%", tc.nodes, tc.percent)
		}
	}
	require.Empty(t, except(even, 50), "where the ranks alone give the share, nothing is kept")
}

// nodes are node ids, with ranks in ascending order.
func nodes(n int) (list []string) {
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
	return f.add(domain, store.Draft{Rollout: &store.Rollout{
		Percent: percent, Except: f.ledger.Choose("default", percent), State: store.Canary,
	}})
}

func (f *fixture) step(number uint64, state store.RolloutState) {
	f.t.Helper()
	f.append(store.Change{Steps: []store.Step{{Revision: number, State: state}}})
	require.NoError(f.t, f.Refresh(f.t.Context())) // a step is no new revision
}

func (f *fixture) lasting() (number uint64, c Canary) { return f.ledger.Canary("default") }

// Only the proxies of a canary get it, and those that come get what their rank says, also
// after a kill at any point. An abort concerns nobody else, and promote takes the rest along.
func TestACanaryIsPromotedOrAborted(t *testing.T) {
	for _, killed := range []bool{false, true} {
		run(t, func(t *testing.T, f *fixture) {
			ids := nodes(4)
			f.apply("one")
			first, second := f.proxy(ids[0]), f.proxy(ids[1])
			last := f.proxy(ids[3])
			all := []*proxyClient{first, second, last}
			accept("one", all...)
			kill := func() {
				if killed {
					f.kill(all...)
				}
			}
			settled := func(runs ...uint64) {
				f.runs(ids[0]+" "+ids[1]+" "+ids[3], runs...)
				kill()
				f.runs(ids[0]+" "+ids[1]+" "+ids[3], runs...)
				idle(all...)
			}
			settled(1, 1, 1)

			two := f.canary("two", 33)
			kill()
			accept("two", first)
			settled(two, 1, 1)
			f.state(ids[0], "connected, in the canary")
			f.state(ids[3], "connected")
			require.Zero(t, f.ledger.Behind())
			require.Equal(t, uint64(1), f.ledger.ForNewProxy("default"))
			require.Equal(t, []ProxyOutcome{{Node: ids[0], Revision: two, Outcome: Acked}}, f.outcomes(two),
				"the others are not waited for")
			number, c := f.lasting()
			require.Equal(t, two, number)
			require.Equal(t, []int{1, 1, 3}, []int{c.Connected, c.Runs, c.Of})
			came := f.proxy(ids[2])
			accept("one", came)
			came.hangUp()

			f.step(two, store.Aborted)
			kill()
			accept("one", first)
			settled(1, 1, 1)
			require.Len(t, f.outcomes(1), 3)
			number, _ = f.lasting()
			require.Zero(t, number)

			three := f.canary("three", 50)
			kill()
			accept("three", first, second)
			settled(three, three, 1)
			f.step(three, store.Promoted)
			kill()
			accept("three", last)
			settled(three, three, three)
			require.Equal(t, three, f.ledger.ForNewProxy("default"))
		})
	}
}

// A proxy that waits for its abort is waited for, though it has accepted the revision once.
func TestAbortIsFollowed(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		p := f.proxy("p")
		accept("one", p)
		two := f.canary("two", 0.001)
		_, c := f.lasting()
		require.Equal(t, []string{"p"}, c.Except, "at least one is in it")
		held := p.expect("two")
		f.step(two, store.Aborted)
		require.Equal(t, []ProxyOutcome{{Node: "p", Revision: two, Outcome: Superseded}}, f.outcomes(two))
		p.ack(held)
		back := p.expect("one")
		done := make(chan []ProxyOutcome, 1)
		go func() { done <- f.outcomes(1) }()
		idle(p)
		require.Empty(t, done, "it has not replied yet")
		p.ack(back)
		require.Equal(t, []ProxyOutcome{{Node: "p", Revision: 1, Outcome: Acked}}, <-done)
	})
}

// What a proxy of the canary refuses is withdrawn from it, and nobody else gets it.
func TestARefusedCanaryIsWithdrawn(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		ids := nodes(2)
		f.apply("one")
		first, last := f.proxy(ids[0]), f.proxy(ids[1])
		accept("one", first, last)
		two := f.canary("two", 50)
		first.refuse("two", "one")
		idle(last)
		require.Equal(t, Nacked, f.outcomes(two)[0].Outcome)
		require.Len(t, f.outcomes(two), 1)
		_, c := f.lasting()
		require.Equal(t, ids[:1], c.Refused)
		require.Equal(t, []int{1, 0}, []int{c.Connected, c.Runs})
		f.step(two, store.Aborted)
		idle(first)
		f.apply("three")
		accept("three", first, last)
	})
}

// A proxy that ran a canary and went away is not one that did well, and one of two filters runs a canary
// once both do.
func TestWhoRunsACanary(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		ids := nodes(2)
		f.apply("one")
		first, second := f.proxy(ids[0]), f.proxy(ids[1])
		filter := f.proxy(ids[1])
		accept("one", first, second, filter)
		number := f.canary("two", 100)
		stands := func(runs int, gone ...string) {
			t.Helper()
			_, c := f.lasting()
			require.Equal(t, runs, c.Runs)
			require.Equal(t, gone, c.Gone)
		}
		accept("two", first, second)
		stands(1)
		accept("two", filter)
		stands(2)
		second.hangUp()
		filter.hangUp()
		stands(1, ids[1])
		second.connect()
		stands(2)
		require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "elsewhere", Revision: number}))
		f.readAgain()
		require.NoError(t, f.Refresh(t.Context()))
		_, c := f.lasting()
		require.True(t, c.Nacked)
	})
}
