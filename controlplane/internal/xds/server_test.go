package xds

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/envoy"
)

func TestSilentWithoutARevision(t *testing.T) {
	f := newFixture(t)
	e := f.proxy("e1")
	e.nothingMore()
	f.apply("one")
	e.accept("one")
	f.eventually("ACK booked", func() bool { return f.status("e1").Acked == 1 })
	require.Equal(t, Counts{Pushes: 1, Acks: 1}, f.server.Counts())
}

func TestRefusedRevisionIsWithdrawn(t *testing.T) {
	f := newFixture(t)
	f.apply("good")
	e := f.proxy("e1")
	first := e.expect("good")
	e.ack(first)

	f.apply("bad")
	e.refuse("bad")
	again := e.expect("good")
	require.NotEqual(t, first.GetNonce(), again.GetNonce())
	require.NotEqual(t, revisionStamp(t, first), revisionStamp(t, again), "the same bytes would be acknowledged unseen")
	require.True(t, strings.HasPrefix(revisionStamp(t, again), "1-"))
	require.NotEqual(t, first.GetResources()[0].GetVersion(), again.GetResources()[0].GetVersion())
	f.eventually("withdrawal under way", func() bool { return f.status("e1").Pushed == 1 })
	st := f.status("e1")
	require.True(t, st.Waiting)
	require.Equal(t, uint64(2), st.Nacked)
	require.Equal(t, "Unable to create Wasm plugin sluice", st.NackText)

	e.ack(again)
	f.eventually("withdrawal confirmed", func() bool { return !f.status("e1").Waiting })
	st = f.status("e1")
	require.Equal(t, uint64(1), st.Acked, "the confirmation is not an ACK of the refused revision")
	require.Equal(t, uint64(2), st.Nacked)
	e.nothingMore()
	history, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.False(t, history[0].Acked)
	require.True(t, history[0].Nacked)

	f.apply("next")
	e.accept("next")
	f.eventually("next one accepted", func() bool { return f.status("e1").Acked == 3 })
}

func TestAnswersCountOnlyByNonce(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	one := e.expect("one")
	e.ack(one)
	f.apply("two")
	two := e.expect("two")

	e.ack(one) // late, and made up
	require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: "made-up"}))
	// A request without nonce is no answer either.
	require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL}))
	e.nack(two)
	e.accept("one")
	f.eventually("withdrawn", func() bool { s := f.status("e1"); return s.Nacked == 2 && !s.Waiting })
	require.Equal(t, uint64(1), f.status("e1").Acked)
}

func TestSilentProxyIsNotOverrun(t *testing.T) {
	f := newFixture(t)
	f.apply("r1")
	slow, quick := f.proxy("slow"), f.proxy("quick")
	quick.accept("r1")
	held := slow.expect("r1")
	for i := 2; i <= 5; i++ {
		f.apply(fmt.Sprint("r", i))
	}
	// The quick one may or may not see those in between; it ends at the last.
	for f.status("quick").Acked != 5 {
		select {
		case r := <-quick.got:
			quick.ack(r)
		case <-time.After(5 * time.Millisecond):
		}
	}
	slow.nothingMore()
	require.True(t, f.status("slow").Waiting)
	slow.ack(held)
	slow.accept("r5")
	f.eventually("caught up", func() bool { return f.status("slow").Acked == 5 })
}

func TestProxyThatRefusesEverythingIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	ok := f.proxy("ok")
	for i := range 4 {
		name := fmt.Sprint("r", i)
		f.apply(name)
		ok.accept(name)
	}
	f.eventually("history", func() bool { return f.status("ok").Acked == 4 })
	broken := f.proxy("broken")
	broken.refuse("r3")
	broken.refuse("r2")
	broken.nothingMore()
	require.Equal(t, uint64(0), f.status("broken").Acked)
	f.apply("r4")
	ok.accept("r4")
	f.eventually("accepted by one", func() bool { return f.status("ok").Acked == 5 })
	broken.refuse("r4")
	broken.receive()
	late := f.proxy("late")
	late.accept("r4")
}

func TestAggregatedStream(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "e1"}, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	}))
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResourceNamesSubscribe: []string{envoy.ResourceName},
	}))
	r, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, TypeURL, r.GetTypeUrl())
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: r.GetNonce()}))
	f.eventually("booked", func() bool { return f.status("e1").Acked == 1 })

	f.server.Stop()
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotErrorIs(t, err, io.EOF)
}
