package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of other services
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func testCodec() encoding.CodecV2 { return NewCodec(encoding.GetCodecV2("proto")) }

// startServer serves a service on loopback.
func startServer(t testing.TB, s *quotaservice.Service, age time.Duration) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web := grpc.NewServer(grpc.ForceServerCodecV2(testCodec()))
	server := NewServer(s, nil)
	server.age = age
	server.Register(web)
	go func() { _ = web.Serve(l) }()
	t.Cleanup(web.Stop)
	return l.Addr().String()
}

const minute = int64(time.Minute)

func fixed(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: period}
}

// each has every algorithm, with windows that end after the test.
func each(n uint32) map[string]limit.Window {
	const period = int64(240 * time.Hour)
	of := func(a limit.Algorithm) limit.Window { return limit.Window{Algorithm: a, Limit: n, PeriodNs: period} }
	log, bucket := of(limit.SlidingWindowLog), of(limit.TokenBucket)
	log.Units, bucket.Burst = uint16(n), n
	return map[string]limit.Window{
		"fixed": of(limit.FixedWindow), "per key": of(limit.FixedWindowPerKey), "counter": of(limit.SlidingWindowCounter),
		"log": log, "bucket": bucket,
	}
}

// define is the definition 1 of a window.
func define(most uint32, w limit.Window) quota.Definition {
	return quota.Definition{ID: 1, Counter: [16]byte{1}, Windows: []limit.Window{w}, Lease: most}
}

// lossy is a store of whose answers some get lost.
type lossy struct{ swapstore.Store }

func (l *lossy) Swap(ctx context.Context, swaps []swapstore.Swap, done func(int, swapstore.Result)) {
	l.Store.Swap(ctx, swaps, func(i int, r swapstore.Result) {
		if rand.IntN(50) == 0 {
			r = swapstore.Result{Status: swapstore.Failed, Err: errors.New("lost")}
		}
		done(i, r)
	})
}

// worker is a stream of a proxy over gRPC.
type worker struct {
	t      testing.TB
	stream grpc.ClientStream
	conn   *grpc.ClientConn
	cancel context.CancelFunc
}

func dial(t testing.TB, address string, d ...quota.Definition) *worker {
	t.Helper()
	return dialWith(t, address, []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, d...)
}

func dialWith(t testing.TB, address string, options []grpc.DialOption, d ...quota.Definition) *worker {
	t.Helper()
	options = append(options, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(testCodec())))
	conn, err := grpc.NewClient(address, options...)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, desc, "/"+quota.Service+"/"+quota.Method)
	require.NoError(t, err)
	w := &worker{t: t, stream: stream, conn: conn, cancel: cancel}
	require.NoError(t, w.send(quota.Asks{Domain: "d", Process: 1, Definitions: d}))
	return w
}

func (w *worker) send(m quota.Asks) error { return w.stream.SendMsg(message(m.Append(nil))) }

func (w *worker) receive(m *quota.Results) error {
	var text message
	if err := w.stream.RecvMsg(&text); err != nil {
		return err
	}
	return m.Decode(text)
}

func (w *worker) end() {
	w.cancel()
	_ = w.conn.Close()
}

func newService(t testing.TB, store swapstore.Store) *quotaservice.Service {
	t.Helper()
	s, err := quotaservice.NewService(t.Context(), quotaservice.Options{Store: store})
	require.NoError(t, err)
	return s
}

// TestServerNeverOver: many workers over gRPC, of which some break off, and answers
// of the store that get lost. What is admitted stays within the limit.
func TestServerNeverOver(t *testing.T) {
	for name, w := range each(300) {
		for _, most := range []uint32{quota.LeaseAuto, quota.LeaseOff} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				store := &lossy{swapstore.NewMemory(swapstore.SteadyClock())}
				address := startServer(t, newService(t, store), time.Minute)
				beside := startServer(t, newService(t, store), time.Minute)
				var mu sync.Mutex
				var all sync.WaitGroup
				spent := [3]uint32{}
				for i := range 12 {
					all.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), 1))
						got := spend(t, []string{address, beside}[i%2], define(most, w), r)
						mu.Lock()
						defer mu.Unlock()
						for k := range got {
							spent[k] += got[k]
						}
					})
				}
				all.Wait()
				for k, n := range spent {
					require.LessOrEqual(t, n, uint32(300), "key %d", k)
					require.Greater(t, n, uint32(100), "key %d", k)
				}
			})
		}
	}
}

// spend asks until there is nothing left, and returns what it has spent of each key.
func spend(t *testing.T, address string, d quota.Definition, r *rand.Rand) (spent [3]uint32) {
	w := dial(t, address, d)
	defer func() { w.end() }()
	var m quota.Results
	for range 40 {
		if r.IntN(10) == 0 { // breaks off with an answer under way
			_ = w.send(quota.Asks{Asks: []quota.Ask{{Parts: []quota.Part{{Definition: 1, Cost: 1, Waiting: 2}}}}})
			w.end()
			w = dial(t, address, d)
		}
		var asks quota.Asks
		for i := range 3 {
			k := r.IntN(3)
			cost := 1 + r.Uint32N(2)
			parts := []quota.Part{{
				Definition: 1, Key: [16]byte{byte(k)}, Cost: cost, Waiting: cost + r.Uint32N(3), Ahead: r.Uint32N(9),
			}}
			if i == 2 {
				parts = append(parts, quota.Part{Definition: 1, Key: [16]byte{byte((k + 1) % 3)}, Cost: 1, Waiting: 1})
			}
			asks.Asks = append(asks.Asks, quota.Ask{ID: uint32(i), Parts: parts})
		}
		require.NoError(t, w.send(asks))
		var back quota.Asks
		for n := 0; n < len(asks.Asks); n += len(m.Results) {
			require.NoError(t, w.receive(&m))
			for _, a := range m.Results {
				for i, g := range a.Grants {
					keep := g.Units - r.Uint32N(1+g.Units/2)
					spent[asks.Asks[a.ID].Parts[i].Key[0]] += keep
					if keep < g.Units {
						back.Returns = append(back.Returns, quota.Return{Grant: g.Number, Units: g.Units - keep})
					}
				}
			}
		}
		require.NoError(t, w.send(back))
	}
	return spent
}

// TestStreamsEnd: a stream that is old ends with its asks answered, and one that says
// nothing valid ends with the reason.
func TestStreamsEnd(t *testing.T) {
	s := newService(t, swapstore.NewMemory(swapstore.SteadyClock()))
	w := dial(t, startServer(t, s, 50*time.Millisecond), define(quota.LeaseAuto, fixed(10, minute)))
	defer w.end()
	var m quota.Results
	require.EqualError(t, w.receive(&m), "EOF")

	w = dial(t, startServer(t, s, time.Minute))
	defer w.end()
	require.NoError(t, w.stream.SendMsg(make(message, quota.MaxMessageBytes+10)))
	err := w.receive(&m)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "longer than 64 KiB")
}

// slow is a store whose answers wait, or Swap itself, until the test goes on.
type slow struct {
	swapstore.Store
	answersWait, swapWaits atomic.Bool
	began                  chan struct{} // Swap is called meanwhile
	goOn                   chan struct{}
}

func (sl *slow) Swap(ctx context.Context, swaps []swapstore.Swap, done func(int, swapstore.Result)) {
	if !sl.answersWait.Load() {
		sl.Store.Swap(ctx, swaps, done)
		return
	}
	sl.Store.Swap(ctx, swaps, func(i int, r swapstore.Result) {
		go func() {
			<-sl.goOn
			done(i, r)
		}()
	})
	sl.began <- struct{}{}
	if sl.swapWaits.Load() {
		<-sl.goOn
	}
}

// TestADrainAnswersWhatItTookBeforeALateMessage: the message that comes once the service drains is refused, and the ask
// before it is answered all the same. The stream has not heard of the drain when the message comes, because the
// goroutine that tells it waits for the store.
func TestADrainAnswersWhatItTookBeforeALateMessage(t *testing.T) {
	store := &slow{
		Store: swapstore.NewMemory(swapstore.SteadyClock()), began: make(chan struct{}, 9), goOn: make(chan struct{}),
	}
	s := newService(t, store)
	address := startServer(t, s, time.Minute)
	ask := func(key byte) quota.Asks {
		part := quota.Part{Definition: 1, Key: [16]byte{key}, Cost: 1, Waiting: 1}
		return quota.Asks{Asks: []quota.Ask{{ID: uint32(key), Parts: []quota.Part{part}}}}
	}
	begin := func() *worker {
		w := dial(t, address, define(quota.LeaseOff, each(10)["fixed"]))
		t.Cleanup(w.end)
		return w
	}
	w, beside := begin(), begin()
	var m quota.Results
	require.NoError(t, w.send(ask(1)))
	require.NoError(t, w.receive(&m), "the service knows the store's clock by now")
	store.answersWait.Store(true)
	require.NoError(t, w.send(ask(2)))
	<-store.began
	store.swapWaits.Store(true)
	require.NoError(t, beside.send(ask(3)))
	<-store.began
	go s.Drain(t.Context())
	require.Eventually(t, s.Draining, 10*time.Second, time.Millisecond)
	require.NoError(t, w.send(ask(4)))
	received := make(chan error, 1)
	go func() { received <- w.receive(&m) }()
	select {
	case err := <-received:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(100 * time.Millisecond): // the service has refused the message
	}
	close(store.goOn)
	require.NoError(t, <-received)
	require.EqualValues(t, 2, m.Results[0].ID)
	require.Equal(t, quota.Granted, m.Results[0].Outcome)
	require.Equal(t, codes.Unavailable, status.Code(w.receive(&m)))
}

// The connection of a proxy whose certificate is not trusted any more ends, also if it does not
// read its answers.
func TestTrustEndsWhereNothingIsRead(t *testing.T) {
	authority := certtest.Issue(nil, nil)
	issue := func(name string) []tls.Certificate {
		return []tls.Certificate{*certtest.Issue(authority, []string{name})}
	}
	pool := certtest.Pool(authority)
	var trusted atomic.Pointer[x509.CertPool]
	trusted.Store(pool)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web := grpc.NewServer(append(listener.ServerOptions(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: issue("localhost"), NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}), grpc.ForceServerCodecV2(testCodec()))...)
	server := NewServer(newService(t, swapstore.NewMemory(swapstore.SteadyClock())), trusted.Load)
	server.verifyEvery = time.Second
	server.Register(web)
	go func() { _ = web.Serve(l) }()
	t.Cleanup(web.Stop)
	w := dialWith(t, l.Addr().String(), []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: "localhost", Certificates: issue("proxy"),
		})), grpc.WithStaticStreamWindowSize(64 << 10),
	}, define(quota.LeaseAuto, fixed(1e9, minute)))
	defer w.end()
	trusted.Store(x509.NewCertPool())
	ended := make(chan error)
	go func() {
		for n := uint64(0); ; n++ {
			part := quota.Part{Definition: 1, Key: quota.KeyOf(0, n), Cost: 1, Waiting: 1}
			if err := w.send(quota.Asks{Asks: []quota.Ask{{ID: uint32(n), Parts: []quota.Part{part}}}}); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("still connected")
	}
}

// BenchmarkServer is how many asks a second one service answers over gRPC: streams
// with one message under way each, of 64 asks for as many keys. It counts seconds of
// one core, the workers' side of the connection included.
func BenchmarkServer(b *testing.B) {
	s := newService(b, swapstore.NewMemory(swapstore.SteadyClock()))
	address := startServer(b, s, time.Hour)
	const streams, batch = 8, 64
	var all sync.WaitGroup
	per := b.N/(streams*batch) + 1
	before := cpuSeconds(b)
	for i := range streams {
		all.Go(func() {
			w := dial(b, address, define(quota.LeaseAuto, fixed(1e9, minute)))
			defer w.end()
			var m quota.Results
			var asks quota.Asks
			for n := range per {
				asks.Asks = asks.Asks[:0]
				for k := range batch {
					id := quota.KeyOf(uint64(i), uint64((n*batch+k)%20000))
					part := quota.Part{Definition: 1, Key: id, Cost: 1, Waiting: 1}
					asks.Asks = append(asks.Asks, quota.Ask{ID: uint32(k), Parts: []quota.Part{part}})
				}
				if err := w.send(asks); err != nil {
					panic(err)
				}
				for got := 0; got < batch; got += len(m.Results) {
					if err := w.receive(&m); err != nil {
						panic(err)
					}
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(per*streams*batch)/(cpuSeconds(b)-before), "asks/core-s")
}

func cpuSeconds(b *testing.B) float64 {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}
