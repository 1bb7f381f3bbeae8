package xds

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// applyTo is apply for a policy of proxies with that in their node ids.
func (f *fixture) applyTo(policy, nodes, domain string) uint64 {
	f.t.Helper()
	r, err := add(f.t.Context(), f.store, store.Draft{
		Policy: policy, Proxies: &selector.Selector{Node: nodes}, YAML: []byte(domain), JSON: []byte(`{"version":1,"domain":"` + domain + `"}`),
	})
	require.NoError(f.t, err)
	f.eventually("the server to know it", func() bool { return f.server.Ledger().Newest() >= r.Number })
	return r.Number
}

func TestEachProxyGetsItsPolicy(t *testing.T) {
	f := newFixture(t)
	f.applyTo("edge", "edge-*", "edge 1")
	edge, core := f.proxy("edge-1"), f.proxy("core-1")
	edge.accept("edge 1")
	core.nothingMore()
	f.state("core-1", "no policy is for it: its bootstrap decides")
	require.Equal(t, 1, f.server.Ledger().Untaken())
	require.Equal(t, "edge", f.state("edge-1", "connected").Policy)
	f.apply("default 1")
	core.accept("default 1")
	edge.nothingMore()
	require.Equal(t, "default", f.state("core-1", "connected").Policy)
	require.Zero(t, f.server.Ledger().Untaken())
	require.Zero(t, f.server.Ledger().Behind())

	// A revision that is refused in one policy is nothing to the other.
	bad := f.applyTo("edge", "edge-*", "edge 2")
	edge.refuse("edge 2")
	edge.accept("edge 1")
	core.nothingMore()
	f.state("edge-1", fmt.Sprintf("refused revision %d, runs 1", bad))
	f.apply("default 2")
	core.accept("default 2")
	edge.nothingMore()
	f.state("core-1", "connected")

	f.restart()
	edge.hangUp()
	edge.connect()
	core.hangUp()
	core.connect()
	core.nothingMore()
	edge.nothingMore()
	f.state("core-1", "connected")
	require.Equal(t, []string{"default", "edge"}, f.server.Ledger().Policies())
	require.Equal(t, uint64(1), f.server.Ledger().Current("edge"))
	require.Equal(t, uint64(4), f.server.Ledger().Current("default"))
}

// Whom a policy is for may change with each revision: those that are there move at once,
// and a rollout waits for the right ones.
func TestARevisionMovesProxies(t *testing.T) {
	f := newFixture(t)
	l := f.server.Ledger()
	f.apply("default 1")
	a, b := f.proxy("edge-a"), f.proxy("edge-b")
	a.accept("default 1")
	b.accept("default 1")
	f.eventually("both run it", func() bool { return f.status("edge-a").Acked == 1 && f.status("edge-b").Acked == 1 })

	two := f.applyTo("edge", "edge-a", "edge 1")
	a.accept("edge 1")
	b.nothingMore()
	var outcomes []ProxyOutcome
	require.Empty(t, l.Follow(t.Context(), two, func(o ProxyOutcome) { outcomes = append(outcomes, o) }))
	require.Equal(t, []ProxyOutcome{{Node: "edge-a", Revision: 2, Outcome: Acked}}, outcomes)

	f.applyTo("edge", "edge-b", "edge 2")
	a.accept("default 1")
	b.accept("edge 2")
	f.eventually("they have changed places", func() bool { return f.status("edge-a").Runs == 1 && f.status("edge-b").Runs == 3 })
	require.Equal(t, "default", f.status("edge-a").Policy)

	// One that moves away does not hold up a rollout.
	four := f.applyTo("edge", "edge-b", "edge 3")
	held := b.expect("edge 3")
	done := make(chan []ProxyOutcome, 1)
	go func() { done <- l.Follow(t.Context(), four, func(ProxyOutcome) {}) }()
	f.applyTo("edge", "edge-c", "edge 4")
	require.Empty(t, <-done)
	b.ack(held)
	b.accept("default 1")
}

// A proxy that comes with a moving revision is asked even where another has refused that
// by then: it was there.
func TestRefusalBesideAMove(t *testing.T) {
	f := newFixture(t)
	f.apply("default 1")
	a, b := f.proxy("a"), f.proxy("b")
	a.accept("default 1")
	b.accept("default 1")
	f.applyTo("all", "*", "all 1")
	a.refuse("all 1")
	b.accept("all 1")
	f.eventually("accepted", func() bool { return f.status("b").Runs == 2 })
}

func TestSelectorsOfClusterAndMetadata(t *testing.T) {
	f := newFixture(t)
	_, err := add(t.Context(), f.store, store.Draft{
		Policy: "prod", JSON: []byte(`{"version":1,"domain":"prod"}`),
		Proxies: &selector.Selector{Cluster: "front", Metadata: map[string]string{"LABELS.env": "prod*"}},
	})
	require.NoError(t, err)
	f.apply("rest")
	for env, want := range map[string]string{"production": "prod", "staging": "rest"} {
		labels, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"env": env}})
		require.NoError(t, err)
		p := f.named(env, nil)
		p.node = &corev3.Node{Id: env, Cluster: "front", Metadata: labels}
		p.connect()
		p.accept(want)
	}
}
