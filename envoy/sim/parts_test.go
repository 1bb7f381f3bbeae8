package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// setUpWitness starts a host with the filter that logs answers.
func setUpWitness(t *testing.T, change ...func(*sim.Options)) (b *bench) {
	t.Helper()
	return setUp(t, append(change, func(o *sim.Options) {
		o.Wasm, o.LogLevel = witness, sim.Info
		o.Log = func(_ sim.Level, _ int, m string) { b.note(&b.lines, m) }
	})...)
}

func (b *bench) named(name string) *sim.Exchange {
	b.t.Helper()
	x, err := b.Start(0, &sim.Request{Headers: [][2]string{{"x-name", name}}})
	require.NoError(b.t, err)
	return x
}

// Parts have an order, and one that comes too late is lost.
func TestPartsOutOfOrder(t *testing.T) {
	b := setUpWitness(t)
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

	p := setUpPauser(t)
	x = p.start(0, "a", "pause|tick 1000")
	_, err = x.Answer(ok, true)
	require.ErrorContains(t, err, "the filter has paused it")
	require.ErrorContains(t, x.Chunk(nil, true), "the filter has paused it")
	require.ErrorContains(t, x.Reset(sim.UpstreamReset), "the filter has paused it")
}

// Serve shows the whole answer of the upstream, one that fails too.
func TestServeShowsTheWholeAnswer(t *testing.T) {
	b := setUpWitness(t)
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
	b := setUpWitness(t, func(o *sim.Options) { o.Withheld = []string{"proxy_on_response_body", "proxy_on_log"} })
	x := b.named("a")
	_, err := x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	require.NoError(t, x.Chunk([]byte("hello"), true))
	require.Empty(t, append(only(b.lines, "response_body"), only(b.lines, "log")...))
	require.Len(t, b.heard(), 3)
}

// A filter that traps on a part of the body cuts the answer off.
func TestTrapOnAPart(t *testing.T) {
	b := setUpWitness(t)
	x, other := b.named("a"), b.named("b")
	for _, x := range []*sim.Exchange{x, other} {
		_, err := x.Answer(&sim.Response{Status: 200}, false)
		require.NoError(t, err)
	}
	require.ErrorContains(t, x.Chunk([]byte("trap"), false), "the stream was reset")
	require.ErrorContains(t, other.Chunk([]byte("hello"), false), "the stream was reset", "its VM is gone")
	res := b.finish(x)
	require.Equal(t, []any{200, true, "wasm_fail_stream"}, []any{res.Status, res.Reset, res.Details})
}

// What another callback asks for, for an answer under way, ends it.
func TestClosedFromATick(t *testing.T) {
	b := setUpPauser(t)
	x := b.start(0, "a", "tick 5 reply a 429")
	_, err := x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	b.at(5e6)
	b.TickDue()
	require.True(t, x.Ended())
	require.True(t, b.finish(x).Reset)
}

func TestStateOfAnOpenExchange(t *testing.T) {
	b := setUp(t)
	x, err := b.Start(0, &sim.Request{Headers: [][2]string{{"x-do", "on;setprop a 1"}, {"x-then", "setprop b|c 2"}}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1"}, x.State())
	_, err = x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b.c": "2"}, x.State())
	require.NoError(t, x.Chunk(nil, true))
	require.Equal(t, map[string]string{"a": "1", "b.c": "2"}, x.State())
}
