package xds

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// state waits until the proxy's state is that.
func (f *fixture) state(node, want string) ProxyStatus {
	f.t.Helper()
	var st ProxyStatus
	f.eventually(want, func() bool {
		for _, st = range f.server.Ledger().Proxies() {
			if st.Node == node && st.State == want {
				return true
			}
		}
		return false
	})
	return st
}

func (p *proxyClient) asks(subscribe, unsubscribe []string) {
	p.f.t.Helper()
	require.NoError(p.f.t, p.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe,
	}))
}

func TestStateOfAProxyThatAsksForSomethingElse(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.named("e1", nil)
	e.dial()
	require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: e.node, TypeUrl: TypeURL, ResourceNamesSubscribe: []string{"slice", "two"},
	}))
	st := f.state("e1", `asks for what is not served (only "sluice" is): "slice"`)
	require.True(t, st.Connected)
	require.Equal(t, []string{"slice", "two"}, st.Unserved)
	require.Equal(t, 1, f.server.Ledger().Behind())
	var outcomes []ProxyOutcome
	require.Empty(t, f.server.Ledger().Follow(t.Context(), 1, func(o ProxyOutcome) { outcomes = append(outcomes, o) }))
	require.Equal(t, []ProxyOutcome{{Node: "e1", Revision: 1, Outcome: Unsent, Text: st.State}}, outcomes)
	e.asks(nil, []string{"slice"})
	f.state("e1", `asks for what is not served (only "sluice" is): "two"`)
	e.asks([]string{envoy.ResourceName}, nil)
	e.accept("one")
	f.eventually("accepted", func() bool { return f.status("e1").Runs == 1 })
	f.state("e1", `asks for what is not served (only "sluice" is): "two"`)
	e.asks(nil, []string{"two"})
	require.Empty(t, f.state("e1", "connected").Unserved)
	e.asks(nil, []string{envoy.ResourceName})
	f.state("e1", "asks for no policy")
}

// What a session keeps of names is bounded.
func TestUnservedNamesAreBounded(t *testing.T) {
	f := newFixture(t)
	e := f.proxy("e1")
	for _, letter := range strings.Split("abcdefghijkl", "") {
		e.asks([]string{strings.Repeat(letter, 1000), letter}, nil)
	}
	f.eventually("noted", func() bool { return len(f.status("e1").Unserved) == maxUnserved })
	for _, name := range f.status("e1").Unserved {
		require.LessOrEqual(t, len(name), maxShown)
	}
}

func TestStateOfAProxyWithoutAPolicy(t *testing.T) {
	f := newFixture(t)
	e := f.proxy("e1")
	f.state("e1", noPolicy)
	f.apply("bad")
	push := e.expect("bad")
	f.state("e1", "waiting for its answer")
	e.nack(push)
	require.Equal(t, uint64(1), f.state("e1", "refused revision 1, "+noPolicy).Nacked)
	f.proxy("e2") // is not asked
	f.state("e2", noPolicy)
	require.Zero(t, f.server.Ledger().Current(store.DefaultPolicy))
}

// A second stream, for another name, does not hide what the first one runs.
func TestStateOfTwoStreams(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	e.accept("one")
	f.state("e1", "connected")
	other := f.named("e1", nil)
	other.dial()
	require.NoError(t, other.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: other.node, TypeUrl: TypeURL, ResourceNamesSubscribe: []string{"slice"},
	}))
	require.Equal(t, uint64(1), f.state("e1", `asks for what is not served (only "sluice" is): "slice"`).Runs)
	ledger := f.server.Ledger()
	require.Equal(t, 1, ledger.Behind())
	var of *track
	outcomes, _ := ledger.outcomes(&of, 1)
	for _, o := range outcomes {
		require.Equal(t, Acked, o.Outcome)
		require.Contains(t, o.Text, `"slice"`)
	}
	other.asks(nil, []string{"slice"})
	require.Equal(t, uint64(1), f.state("e1", "connected, 2 streams").Runs)
	require.Zero(t, ledger.Behind())
}

func TestRefusalsThatMatter(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	e.accept("one")
	f.eventually("current", func() bool { return f.server.Ledger().Current(store.DefaultPolicy) == 1 })
	f.apply("two")
	e.refuse("two")
	e.accept("one")
	st := f.state("e1", "refused revision 2, runs 1")
	require.Equal(t, uint64(2), st.Nacked)
	require.NotEmpty(t, st.NackText)
	require.Equal(t, uint64(1), f.server.Ledger().Current(store.DefaultPolicy), "a refused revision is not current")
	late := f.proxy("e2")
	late.accept("one")
	f.state("e2", "runs revision 1, 2 is withheld: others refused it")

	f.apply("three")
	e.accept("three")
	late.accept("three")
	st = f.state("e1", "connected")
	require.Zero(t, st.Nacked)
	require.Zero(t, st.NackedAt)
	require.Empty(t, st.NackText)
	require.Equal(t, uint64(3), f.server.Ledger().Current(store.DefaultPolicy))

	f.apply("four")
	e.refuse("four")
	e.refuse("three")
	st = f.state("e1", "refused revision 3, left alone until the next")
	require.Equal(t, uint64(3), st.Runs, "Envoy keeps what it runs")
}

// A process that has a policy of another server is not without one.
func TestStateOfAProxyWithAPolicyOfAnotherServer(t *testing.T) {
	f := newFixture(t)
	e := f.named("e1", nil)
	e.version = "7-a-0123456789abcdef"
	e.connect()
	f.state("e1", "runs a policy that is not served here")
	f.apply("one")
	e.accept("one")
	f.state("e1", "connected")
}
