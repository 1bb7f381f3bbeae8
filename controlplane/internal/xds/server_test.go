package xds

import (
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

func TestRefusedRevisionIsWithdrawn(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("good")
		e := f.proxy("e1")
		first := e.expect("good")
		e.ack(first)
		f.apply("bad")
		e.nack(e.expect("bad"))
		again := e.expect("good")
		require.NotEqual(t, first.GetNonce(), again.GetNonce())
		require.NotEqual(t, textOf(first), textOf(again), "the same bytes would be acknowledged unseen")
		require.Contains(t, textOf(again), `"revision":"1-`)
		require.NotEqual(t, first.GetResources()[0].GetVersion(), again.GetResources()[0].GetVersion())
		st := f.state("e1", "waiting for its reply")
		require.Equal(t, []uint64{1, 2}, []uint64{st.Pushed, st.Nacked})
		require.Equal(t, "Unable to create Wasm plugin sluice", st.NackText)
		e.ack(again)
		st = f.state("e1", "refused revision 2, runs 1")
		require.Equal(t, uint64(1), st.Acked, "the confirmation is not an ACK of the refused revision")
		idle(e)
		history, err := f.store.History(t.Context(), "", 0)
		require.NoError(t, err)
		require.Equal(t, []bool{false, true}, []bool{history[0].Acked, history[0].Nacked})
		f.apply("next")
		accept("next", e)
		f.state("e1", "connected")
	})
}

func TestAnswersCountOnlyByNonce(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		e := f.proxy("e1")
		one := e.expect("one")
		e.ack(one)
		f.apply("two")
		two := e.expect("two")
		e.ack(one) // late, and made up
		e.send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "made-up"})
		e.send(&discoveryv3.DeltaDiscoveryRequest{}) // without a nonce, this is no reply either
		require.True(t, f.status("e1").Waiting)
		e.nack(two)
		accept("one", e)
		f.runs("e1", 1)
	})
}

// What is only true of the wire: an aggregated stream, which ends when the server stops. The script
// nodenames.txtar has certificates there.
func TestAggregatedStream(t *testing.T) {
	policies, err := store.Open(t.TempDir())
	require.NoError(t, err)
	defer policies.Close()
	draft := store.Draft{YAML: []byte("y"), JSON: []byte(`{"version":1}`)}
	_, err = policies.Append(t.Context(), store.Change{Drafts: []store.Draft{draft}})
	require.NoError(t, err)
	s, err := New(t.Context(), Options{Store: policies, Wasm: "/f.wasm"})
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(NewCodec()))
	s.Register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	send := func(r *discoveryv3.DeltaDiscoveryRequest) { require.NoError(t, stream.Send(r)) }
	send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "e1"}, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResourceNamesSubscribe: []string{envoy.ResourceName}})
	r, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, TypeURL, r.GetTypeUrl())
	require.Contains(t, textOf(r), "/f.wasm")
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: r.GetNonce()})
	require.Eventually(t, func() bool { return s.Ledger().Proxies()[0].Acked == 1 }, 2*time.Minute, time.Millisecond)
	s.Stop()
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "control plane is shutting down")
}

func TestWhatAProxyGetsWhenItReconnects(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		e := f.proxy("e1")
		accept("one", e)
		e.reconnect() // what it holds is not sent again
		idle(e)
		secret := f.secret
		f.restart()
		require.Equal(t, secret, f.secret, "reports go on with it")
		st := f.state("e1", "disconnected")
		require.Equal(t, uint64(1), st.Acked, "replies survive")
		e.connect()
		idle(e)
		e.hangUp()
		f.apply("two")
		e.connect()
		accept("two", e)

		f.o.Wasm = "/other.wasm" // the same one with another binary is sent again
		f.restart()
		e.connect()
		r := e.expect("two")
		require.Contains(t, textOf(r), "/other.wasm")
		e.ack(r)

		f.apply("three") // a reply lost with the connection is made up for
		e.version = e.expect("three").GetResources()[0].GetVersion()
		require.Equal(t, uint64(2), f.status("e1").Acked)
		e.reconnect()
		require.Equal(t, uint64(3), f.status("e1").Acked)
		idle(e)

		f.apply("four") // and a refusal is given again
		e.expect("four")
		e.reconnect()
		e.refuse("four", "three")
		e.reconnect() // a refused revision is not tried again
		idle(e)
		f.restart()
		accept("three", f.proxy("later"))
		e.connect()
		idle(e)
		f.runs("e1", 3) // it said so itself
		e.hangUp()
		e.version = "" // the process that refused it starts anew, and gets what is good as well
		e.connect()
		r = e.expect("three")
		f.runs("e1", 0)
		e.ack(r)

		f.apply("five") // a withdrawal that was not confirmed is sent again
		e.nack(e.expect("five"))
		e.expect("three")
		e.reconnect()
		accept("three", e)
	})
}

func TestMixedReplies(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		a, b := f.proxy("a"), f.proxy("b")
		accept("one", a, b)
		f.apply("two")
		b.refuse("two", "one") // first, before a has replied
		early := f.proxy("early")
		accept("one", early) // withheld: refused by some, accepted by none so far
		f.state("early", "runs revision 1, 2 is withheld: others refused it")
		accept("two", a, early) // and lifted by the first acceptance
		accept("two", f.proxy("late"))
		f.runs("a b early late", 2, 1, 2, 2)
		require.Equal(t, []uint64{0, 2}, []uint64{f.status("a").Nacked, f.status("b").Nacked})
		idle(b)
		b.hangUp()
		b.version = "" // its process starts anew: what was wrong may have been repaired
		b.connect()
		accept("two", b)
		f.state("b", "connected")
	})
}

// What a proxy holds outranks what it is remembered to have refused.
func TestReportOutranksRefusal(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		parent, child := f.proxy("e1"), f.proxy("e1")
		accept("one", parent, child)
		f.apply("two")
		accept("two", parent)
		child.nack(child.expect("two"))
		child.expect("one") // and is gone before it says so
		child.hangUp()
		require.Equal(t, []any{uint64(2), true}, []any{f.status("e1").Nacked, f.status("e1").Unsettled})
		for range 2 {
			f.restart()
			parent.connect()
			idle(parent)
			st := f.state("e1", "connected")
			require.Equal(t, []uint64{2, 2}, []uint64{st.Acked, st.Offered})
			require.Empty(t, st.Refused)
			require.False(t, st.Unsettled)
		}
	})
}

// Two processes of one identity that disagree do not move each other, and the
// one that is left after a restart of the server keeps what it runs.
func TestProcessesThatDisagree(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		a, b := f.proxy("e1"), f.proxy("e1")
		accept("one", a, b)
		for _, domain := range []string{"two", "three"} {
			f.apply(domain)
			accept(domain, a)
			b.refuse(domain, "one")
		}
		f.restart()
		a.connect()
		f.runs("e1", 3)
		b.connect() // it is asked again: of one identity one history is remembered
		b.refuse("three", "one")
		idle(a)
	})
}
