package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// slowPeer repeats what it is told after a while of the simulated time.
type slowPeer struct {
	in    *sim.Inbox
	note  func(string)
	after time.Duration
}

func (p slowPeer) Send(message []byte) { p.in.Message(p.after, message) }
func (p slowPeer) CloseSend()          { p.note("close send") }
func (p slowPeer) Cancel()             { p.note("cancel") }

func told(name, do string) *sim.Request {
	return &sim.Request{Headers: [][2]string{{"x-name", name}, {"x-do", do}}}
}

func (b *bench) start(worker int, name, do string) *sim.Exchange {
	b.t.Helper()
	x, err := b.Start(worker, told(name, do))
	require.NoError(b.t, err)
	return x
}

func (b *bench) finish(x *sim.Exchange) *sim.Response {
	b.t.Helper()
	res, err := x.Finish()
	require.NoError(b.t, err)
	return res
}

// run makes time pass from one event to the next until all requests go on.
func (b *bench) run(all ...*sim.Exchange) {
	b.t.Helper()
	for _, x := range all {
		for x.Paused() {
			at, ok := b.Next()
			require.True(b.t, ok, "nothing will happen any more")
			b.at(at)
			b.TickDue()
		}
	}
}

func only(lines []string, word string) (kept []string) {
	for _, line := range lines {
		if strings.Contains(line, word) {
			kept = append(kept, line)
		}
	}
	return kept
}

func TestTimeIsTheCallers(t *testing.T) {
	b := setUp(t, workers(2))
	_, ok := b.Next()
	require.False(t, ok, "nothing is under way")
	slow := b.start(0, "slow", "pause|open 7ms|send resume slow")
	quick := b.start(1, "quick", "pause|open 3ms|send reply quick 429")
	ticked := b.start(0, "ticked", "pause|tick 5 resume ticked")
	_, err := slow.Finish()
	require.ErrorContains(t, err, "paused")
	select {
	case <-b.Changed():
	default:
		t.Fatal("a tick and three pauses changed nothing")
	}
	b.run(slow, quick, ticked)
	require.Equal(t, int64(7*time.Millisecond), b.now(), "no time passes but to the next event")
	require.Equal(t, 429, b.finish(quick).Status)
	require.Equal(t, 200, b.finish(slow).Status)
	require.Equal(t, 200, b.finish(ticked).Status)
	require.Equal(t, []string{"0 resume ticked 0 0", "0 resume slow 0 0"}, only(b.heard(), "0 resume"))
}

// A stream keeps its order, whatever the delays.
func TestOneStreamKeepsItsOrder(t *testing.T) {
	b := setUp(t, func(o *sim.Options) {
		o.Dial = func(_ sim.Call, in *sim.Inbox) (sim.Peer, error) {
			in.Message(5*time.Millisecond, []byte("path first"))
			in.Message(time.Millisecond, []byte("path second"))
			return slowPeer{in, func(string) {}, 0}, nil
		}
	})
	b.start(0, "a", "open 1ms")
	b.at(4e6)
	b.TickDue()
	require.Empty(t, only(b.heard(), "path"))
	b.at(5e6)
	b.TickDue()
	require.Equal(t, []string{"0 path first 0 2 ", "0 path second 0 2 "}, only(b.heard(), "path"))
}

func TestNothingCanResume(t *testing.T) {
	b := setUp(t)
	_, err := b.Serve(0, told("a", "pause"))
	require.ErrorIs(t, err, sim.ErrPaused)
	require.Equal(t, []string{"0 log a ", "0 done a", "0 delete a"}, b.heard()[1:])
	require.True(t, b.start(0, "a", "pause|open 1ms").Paused(), "a stream may")
}

func TestCloseEndsPauses(t *testing.T) {
	b := setUp(t)
	x := b.start(0, "a", "pause|open 1ms")
	b.Close()
	require.True(t, b.finish(x).Reset)
	require.Equal(t, []string{"cancel"}, b.ended())
}

func TestDeniedWhileTheUpstreamThinks(t *testing.T) {
	b := setUp(t)
	r := told("a", "pause|tick 1 resume a")
	r.Upstream = func(*sim.Request) (*sim.Response, error) {
		_, err := b.Serve(0, told("b", "reply a 429"))
		return &sim.Response{Status: 200}, err
	}
	x, err := b.Start(0, r)
	require.NoError(t, err)
	b.run(x)
	require.Equal(t, 429, b.finish(x).Status)
}

func TestPausedRequestsEndWhenIdle(t *testing.T) {
	b := setUp(t, func(o *sim.Options) { o.StreamIdle = time.Second })
	first := b.start(0, "a", "pause")
	b.at(1e6)
	r := told("b", "pause")
	r.HasBody = true
	second, err := b.Start(0, r)
	require.NoError(t, err)
	at, ok := b.Next()
	require.True(t, ok)
	require.Equal(t, int64(time.Second), at)
	b.run(first)
	require.True(t, second.Paused())
	res := b.finish(first)
	require.Equal(t, []any{504, "stream_idle_timeout", "stream timeout"}, []any{res.Status, res.Details, string(res.Body)})
	b.run(second)
	require.Equal(t, 408, b.finish(second).Status, "it may still be sending")
	require.Equal(t, []string{"0 log a 504", "0 log b 408"}, only(b.heard(), "0 log"))
}

// What a filter asks for in one callback is done in callbacks inside each other:
// see maxNested.
func TestTooManyRepliesAtOnce(t *testing.T) {
	const many, managed = 320, 304
	b := setUp(t, func(o *sim.Options) { o.StreamIdle = time.Second })
	var all []*sim.Exchange
	for i := range many {
		all = append(all, b.start(0, fmt.Sprint("r", i), "pause"))
	}
	waits := b.start(0, "waits", "pause")
	b.start(0, "x", fmt.Sprintf("open 1ms|send all %d reply R 429", many))
	b.run(all...)
	for i, x := range all {
		res := b.finish(x)
		if i < managed {
			got := []any{res.Status, res.Reset, len(res.Body)}
			require.Equal(t, []any{429, true, 0}, got, "%d: headers without their body", i)
		} else {
			require.Equal(t, []any{503, false}, []any{res.Status, res.Reset}, i)
		}
	}
	require.ErrorContains(t, b.Failed(0), "stack overflow")
	require.True(t, waits.Paused(), "nobody resumes it")
	b.run(waits)
	require.Equal(t, 503, b.finish(waits).Status)
	require.Equal(t, []string{"cancel"}, b.ended(), "the stream ends with the VM")
}

// A configuration goes with its last request, and its streams with it.
func TestStreamsEndWithTheirConfiguration(t *testing.T) {
	b := setUp(t)
	x := b.start(0, "a", "pause|open 1ms|send reply a 429")
	require.NoError(t, b.Configure([]byte("second")))
	require.Empty(t, b.ended())
	b.run(x)
	require.Equal(t, 429, b.finish(x).Status)
	require.Equal(t, []string{"cancel"}, b.ended())
}

func TestNoClusters(t *testing.T) {
	b := setUp(t, func(o *sim.Options) { o.Dial = nil })
	b.start(0, "a", "open 1ms")
	require.Equal(t, []string{"0 request_headers a 1", "0 open 1ms 10 0", "0 grpc_close root 6 14"}, b.heard())
}

func (b *bench) named(name string) *sim.Exchange {
	b.t.Helper()
	x, err := b.Start(0, &sim.Request{Headers: [][2]string{{"x-name", name}}})
	require.NoError(b.t, err)
	return x
}

// Parts have an order, and one that comes too late is lost.
func TestPartsOutOfOrder(t *testing.T) {
	b := setUp(t)
	x := b.named("a")
	require.ErrorContains(t, x.Chunk(nil, true), "its headers come first")
	require.ErrorContains(t, x.Trailers(nil), "its headers come first")
	ok := &sim.Response{Status: 200}
	res, err := x.Answer(ok, false)
	require.NoError(t, err)
	require.Equal(t, 200, res.Status)
	_, err = x.Answer(ok, false)
	require.ErrorContains(t, err, "it has headers already")
	require.ErrorContains(t, x.Redirect(ok), "it is not at the upstream")
	_, err = x.Finish()
	require.ErrorContains(t, err, "its answer has begun")
	require.False(t, x.Ended())
	require.NoError(t, x.Chunk([]byte("hello"), true))
	require.True(t, x.Ended())
	require.ErrorContains(t, x.Chunk(nil, true), "its answer has ended")
	require.NoError(t, x.Reset(sim.ClientGone), "the client may go when it likes")
	require.False(t, b.finish(x).Reset)

	x = b.named("b")
	require.NoError(t, x.Reset(sim.ClientGone))
	_, err = x.Answer(ok, false)
	require.NoError(t, err, "the upstream cannot know")
	require.ErrorContains(t, x.Chunk(nil, true), "the stream was reset")

	p := setUp(t)
	x = p.start(0, "a", "pause|tick 1000")
	_, err = x.Answer(ok, true)
	require.ErrorContains(t, err, "the filter has paused it")
	require.ErrorContains(t, x.Chunk(nil, true), "the filter has paused it")
	require.ErrorContains(t, x.Reset(sim.UpstreamReset), "the filter has paused it")
}

// Serve shows the whole answer of the upstream, one that fails too.
func TestServeShowsTheWholeAnswer(t *testing.T) {
	b := setUp(t)
	r := &sim.Request{Headers: [][2]string{{"x-name", "a"}}}
	r.Upstream = func(*sim.Request) (*sim.Response, error) {
		return &sim.Response{Status: 200, Body: []byte("hello"), Trailers: [][2]string{{"Grpc-Status", "3"}}}, nil
	}
	res, err := b.Serve(0, r)
	require.NoError(t, err)
	require.Equal(t, &sim.Response{Status: 200, Headers: [][2]string{}, Body: []byte("hello"), Details: "via_upstream",
		Trailers: [][2]string{{"grpc-status", "3"}}, GRPCStatus: 3}, res)
	lines := b.heard()
	require.Len(t, lines, 5)
	require.Contains(t, lines[1], "response_headers a 0 ")
	require.Contains(t, lines[2], `response_body a 5 0 "hello" `)
	require.Contains(t, lines[3], "log a [a 200 !1 3]")
}

func TestWithheldCallbacks(t *testing.T) {
	b := setUp(t, func(o *sim.Options) { o.Withheld = []string{"proxy_on_response_body", "proxy_on_log"} })
	x := b.named("a")
	_, err := x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	require.NoError(t, x.Chunk([]byte("hello"), true))
	require.Empty(t, append(only(b.lines, "response_body"), only(b.lines, "log")...))
	require.Len(t, b.heard(), 3)
}

// A filter that traps on a part of the body cuts the answer off.
func TestTrapOnAPart(t *testing.T) {
	b := setUp(t)
	x, other := b.named("a"), b.named("b")
	for _, x := range []*sim.Exchange{x, other} {
		_, err := x.Answer(&sim.Response{Status: 200}, false)
		require.NoError(t, err)
	}
	require.ErrorContains(t, x.Chunk([]byte("trap"), false), "the stream was reset")
	require.ErrorContains(t, other.Chunk([]byte("hello"), false), "the stream was reset", "its VM is gone")
	require.Equal(t, "wasm_fail_stream", b.finish(x).Details)
}

// What another callback asks for, for an answer under way, ends it.
func TestClosedFromATick(t *testing.T) {
	b := setUp(t)
	x := b.start(0, "a", "tick 5 reply a 429")
	_, err := x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	b.at(5e6)
	b.TickDue()
	require.True(t, x.Ended())
	require.True(t, b.finish(x).Reset)
}
