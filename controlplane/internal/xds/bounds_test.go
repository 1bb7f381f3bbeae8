package xds

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
)

func (f *fixture) logged(lines *lockedBuffer) {
	f.log = slog.New(slog.NewTextHandler(lines, nil))
	f.restart()
}

// memoryStream is a stream whose proxy sends these requests.
type memoryStream struct {
	ctx      context.Context
	requests chan request
	got      chan any
}

func (s memoryStream) Context() context.Context { return s.ctx }

func (s memoryStream) SendMsg(response any) error {
	s.got <- response
	return nil
}

func (s memoryStream) RecvMsg(into any) error {
	select {
	case *into.(*request) = <-s.requests:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func TestStreamWithoutARequestEnds(t *testing.T) {
	follow(t, func(f follower) {
		ctx, cancel := context.WithCancel(peer.NewContext(f.t.Context(), &peer.Peer{Addr: &net.TCPAddr{}}))
		start := time.Now()
		err := f.serve(memoryStream{ctx: ctx})
		require.Equal(f.t, codes.DeadlineExceeded, status.Code(err))
		require.Equal(f.t, firstWithin, time.Since(start))

		quick := memoryStream{ctx, make(chan request, 1), make(chan any, 1)}
		quick.requests <- request{node: node{id: "quick"}, typeURL: TypeURL, subscribes: true}
		ended := make(chan error, 1)
		go func() { ended <- f.serve(quick) }()
		time.Sleep(3 * firstWithin) // the deadline is of the first request only
		f.append(1)
		require.Len(f.t, quick.got, 1)
		cancel()
		require.NoError(f.t, <-ended)
	})
}

// A stream counts from its opening, whoever it turns out to be.
func TestOneAddressHasAFifth(t *testing.T) {
	f := newFixture(t)
	l := f.server.Ledger()
	require.Equal(t, maxProxies/5, l.maxStreamsOf)
	l.mu.Lock()
	l.maxStreamsOf = 2
	l.mu.Unlock()
	silent := f.named("silent", nil)
	silent.dial()
	one := f.proxy("one")
	f.eventually("two streams", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.streams == 2 })
	err := f.named("two", nil).refusal()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "2 streams are open from 127.0.0.1, no more are served from one address")
	require.Equal(t, uint64(1), f.server.Counts().TurnedAway)

	elsewhere := f.named("elsewhere", nil)
	elsewhere.from = "127.0.0.2"
	elsewhere.connect()
	one.hangUpAndWait()
	f.eventually("room", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.streams == 2 })
	f.proxy("two")
	silent.hangUp()
	elsewhere.hangUp()
	f.eventually("all gone but one", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.streams == 1 && len(l.streamsOf) == 1
	})
}

// A proxy that connects from many addresses leaves room for others.
func TestOneProxyHasAFifth(t *testing.T) {
	f := newFixture(t)
	l := f.server.Ledger()
	l.mu.Lock()
	l.maxStreamsOf = 2
	l.mu.Unlock()
	from := func(id, address string) *proxyClient {
		p := f.named(id, nil)
		p.from = address
		return p
	}
	from("one", "127.0.0.1").connect()
	from("one", "127.0.0.2").connect()
	f.eventually("two streams", func() bool { return l.Connected("") == 1 && f.status("one").Streams == 2 })
	err := from("one", "127.0.0.3").refusal()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "2 streams of one are open, no more are served of one proxy")
	require.Equal(t, uint64(1), f.server.Counts().TurnedAway)
	from("two", "127.0.0.3").connect()
	f.eventually("another proxy", func() bool { return l.Connected("") == 2 })
}

// Subscribing again and again, with or without a refusal, gets the policy as
// often as an honest proxy needs it and then once a second.
func TestPushingAgainIsPaced(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]bool{"accepting": false, "refusing": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.apply("one")
			f.proxy("good").accept("one") // so that a refusal does not withhold it
			f.eventually("booked", func() bool { return f.server.Counts().Acks == 1 })
			e := f.proxy("e1")
			start := time.Now()
			pushes := 0
			for took := time.Duration(0); took < time.Second || pushes < 2 && took < time.Minute; took = time.Since(start) {
				select {
				case r := <-e.got:
					pushes++
					if refuse {
						e.nack(r)
					} else {
						e.ack(r)
					}
					require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
						TypeUrl: TypeURL, ResourceNamesUnsubscribe: []string{envoy.ResourceName},
						ResourceNamesSubscribe: []string{envoy.ResourceName},
					}))
				case <-time.After(10 * time.Millisecond):
				}
			}
			highest := 1 + burstAgain + 1 + int(time.Since(start).Seconds())
			require.LessOrEqual(t, pushes, highest)
			require.GreaterOrEqual(t, pushes, 2, "again at once")

			// The next revision comes at once all the same.
			watch := buildtest.StartStopwatch()
			f.apply("two")
			for r := e.receive(); !strings.Contains(policyIn(t, r), "two"); r = e.receive() {
				e.ack(r) // the last one of the loop
			}
			require.Less(t, watch.Elapsed(), 4*time.Second)
		})
	}
}

func TestLogLinesAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var lines lockedBuffer
	f.logged(&lines)
	e := f.proxy("e1")
	const sent = 400
	for range sent {
		require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: TypeURL, ResponseNonce: "made\nup\x1b[31m", ResourceNamesSubscribe: []string{"other"},
		}))
	}
	f.eventually("the burst is used up", func() bool { return strings.Count(lines.String(), "\n") >= burstLines })
	f.eventually("a line says how many were left out", func() bool {
		require.NoError(t, e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: "x"}))
		return strings.Contains(lines.String(), "omitted=")
	})
	require.Less(t, strings.Count(lines.String(), "\n"), sent)
	require.NotContains(t, lines.String(), "\x1b")
}

// Kinds of proxies are theirs to make up. They share the policy's text.
func TestKindsShareThePolicy(t *testing.T) {
	f := newFixture(t)
	number := f.apply(strings.Repeat("x", 1<<20))
	r, err := f.server.revision(t.Context(), number)
	require.NoError(t, err)
	for i := range 100 {
		e, err := f.server.payload(t.Context(), node{id: "e", vmID: fmt.Sprint(i)}, number, "a")
		require.NoError(t, err)
		require.Same(t, &r.policy[0], &e.resource[1][0])
		require.Less(t, len(e.resource[0])+len(e.resource[2]), 8<<10)
	}
}

// Two processes of one identity that disagree do not move each other, and the
// one that is left after a restart of the server keeps what it runs.
func TestProcessesThatDisagree(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	a, b := f.proxy("e1"), f.proxy("e1")
	a.accept("one")
	b.accept("one")
	for _, name := range []string{"two", "three"} {
		f.apply(name)
		a.accept(name)
		b.refuse(name)
		b.accept("one")
	}
	f.eventually("settled", func() bool { s := f.status("e1"); return s.Nacked == 3 && !s.Waiting && !s.Unsettled })
	b.hangUp()
	a.hangUpAndWait()
	f.restart()
	a.connect()
	f.eventually("its report is taken", func() bool { return f.status("e1").Runs == 3 })
	a.nothingMore()
	// The other one is asked again: of one identity one history is remembered.
	b.connect()
	b.refuse("three")
	b.accept("one")
	f.eventually("settled", func() bool { s := f.status("e1"); return s.Streams == 2 && !s.Waiting && !s.Unsettled })
	a.nothingMore()
}

// A proxy that reports what never was gets what is.
func TestRevisionsThatNeverWere(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	for i, held := range []string{
		"2-a-b", fmt.Sprint(uint64(math.MaxUint64), "-a-b"), "0-a-b", "-1-a-b", "99999999999999999999-a-b",
		"1-a-b", "1", "\x00", strings.Repeat("1", 100_000),
	} {
		e := f.named(fmt.Sprint("e", i), nil)
		e.version = held
		e.connect()
		e.accept("one")
		f.eventually("booked", func() bool { return f.status(e.node.GetId()).Runs == 1 })
		require.Equal(t, uint64(1), f.status(e.node.GetId()).Acked)
	}
	known, err := f.store.Proxies(t.Context())
	require.NoError(t, err)
	for _, p := range known {
		require.Equal(t, uint64(1), p.Acked)
	}
}
