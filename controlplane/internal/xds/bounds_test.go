package xds

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sluice-ratelimit/sluice/envoy"
)

func TestStreamWithoutARequestEnds(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		silent, quick := f.named("silent"), f.proxy("quick")
		silent.dial()
		time.Sleep(firstWithin - time.Second)
		require.Empty(t, silent.ended)
		time.Sleep(time.Second)
		idle(quick) // the deadline is of the first request only
		silent.refused(codes.DeadlineExceeded, "no request within 10s")
		require.Empty(t, quick.ended)
	})
}

// An address and a proxy have a fifth of the streams each. A stream counts from its opening, whoever it
// turns out to be.
func TestOneHasAFifth(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.ledger
		require.Equal(t, maxProxies/5, l.maxStreamsOf)
		l.maxStreamsOf = 2
		from := func(id string, address byte) *proxyClient {
			p := f.named(id)
			p.peer.Addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, address), Port: f.ports}
			return p
		}
		silent, one, two := f.named("silent"), f.proxy("one"), f.named("two")
		silent.dial()
		two.dial()
		two.refused(codes.ResourceExhausted, "2 streams are open from 127.0.0.1, no more are served from one address")
		require.Equal(t, uint64(1), f.TurnedAway.Load())
		one.hangUp()
		two.connect()
		require.Empty(t, two.ended, "there is room")
		from("many", 2).connect()
		from("many", 3).connect()
		third := from("many", 4)
		third.connect()
		third.refused(codes.ResourceExhausted, "2 streams of many are open, no more are served of one proxy")
		from("other", 4).connect()
		require.Equal(t, 3, l.Connected(""))
		silent.hangUp()
		require.Equal(t, map[string]int{"127.0.0.1": 1, "127.0.0.2": 1, "127.0.0.3": 1, "127.0.0.4": 1}, l.streamsOf)
	})
}

// bounded is a connection at a listener that bounds them.
type bounded struct {
	net.Conn
	uses int
}

func (b *bounded) Keep(uses int) { b.uses += uses }

// A connection is kept while a stream of it has said who it is.
func TestStreamsKeepTheirConnection(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		b, e := new(bounded), f.named("e1")
		e.peer.AuthInfo = newConnection(nil, b)
		e.dial()
		require.Zero(t, b.uses)
		e.connect()
		require.Equal(t, 1, b.uses)
		e.hangUp()
		require.Zero(t, b.uses)
	})
}

// Subscribing again and again, with or without a refusal, gets the policy as
// often as an honest proxy needs it and then once a second.
func TestPushingAgainIsPaced(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		run(t, func(t *testing.T, f *fixture) {
			f.apply("one")
			accept("one", f.proxy("good")) // so that a refusal does not withhold it
			e := f.proxy("e1")
			pushes := 0
			for began := time.Now(); time.Since(began) < 30*time.Second; {
				time.Sleep(10 * time.Millisecond)
				select {
				case pushed := <-e.stream.got:
					pushes++
					r := unmarshal(t, pushed)
					if refuses {
						e.nack(r)
					} else {
						e.ack(r)
					}
					e.asks([]string{envoy.ResourceName}, []string{envoy.ResourceName})
				default:
				}
			}
			require.InDelta(t, 1+burstAgain+30, pushes, 2)
			f.apply("two") // the next one comes at once all the same
			e.expect("two")
		})
	}
}

func TestLogLinesAreBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		lines := f.logged()
		e := f.proxy("e1")
		r := request{typeURL: TypeURL, nonce: "made\nup\x1b[31m", others: 1, unserved: []string{"other"}}
		for range 400 {
			e.stream.requests <- r
		}
		settle()
		require.Equal(t, burstLines, strings.Count(lines.String(), "\n"))
		time.Sleep(time.Second)
		e.stream.requests <- r
		settle()
		require.Contains(t, lines.String(), "omitted=")
		require.NotContains(t, lines.String(), "\x1b")
	})
}

// Kinds of proxies are theirs to make up. They share the policy's text.
func TestKindsShareThePolicy(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		number := f.apply(strings.Repeat("x", 1<<20))
		r, err := f.revision(t.Context(), number)
		require.NoError(t, err)
		for i := range 100 {
			e, err := f.newResponse(f.plugin(r, &node{vmID: fmt.Sprint(i)}), r, "0123456789abcdef")
			require.NoError(t, err)
			require.Same(t, &r.policy[0], &e.parts[1][0])
			require.Less(t, len(e.parts[0])+len(e.parts[2]), 8<<10)
		}
	})
}
