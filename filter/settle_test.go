package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// part delivers a part of an answer.
type part func(x *sim.Exchange) error

func head(status int, headers ...[2]string) part {
	return func(x *sim.Exchange) error {
		_, err := x.Answer(&sim.Response{Status: status, Headers: headers}, false)
		return err
	}
}

func chunk(text string) part {
	return func(x *sim.Exchange) error { return x.Chunk([]byte(text), false) }
}

func end(x *sim.Exchange) error { return x.Chunk(nil, true) }

func garbled(x *sim.Exchange) error {
	_, err := x.Answer(&sim.Response{
		Status:  502,
		Details: "upstream_reset_before_response_started{protocol_error}",
		Flags:   1 << 23,
	}, true)
	return err
}

func trailers(name, value string) part {
	return func(x *sim.Exchange) error { return x.Trailers([][2]string{{name, value}}) }
}

func reset(why sim.Cause) part { return func(x *sim.Exchange) error { return x.Reset(why) } }

func traced(o *sim.Options) { o.Properties = map[string][]byte{"sluice.trace": []byte("all")} }

const settled = "sluice.settled"

var (
	jsonKind = [2]string{"content-type", "application/json"}
	grpcKind = [2]string{"content-type", "application/grpc"}
)

const (
	tokensOfBody = `{"usage":{"prompt_tokens":3,"completion_tokens":4}}`
	failures     = `"when":{"status":[401]}`
	noAnswer     = `"when":{"no_answer":false}`
	tokens       = `"to":"tokens"`
	price        = `"to":"price","prices":[{"model":"small-*","input":2.5e6,"cached":500000,"output":5000000},` +
		`{"model":"*","input":1e7,"output":5e6}]`
)

// endings are answers by their parts, and what a rule with a cost of 10 settles to.
var endings = []struct {
	name, settle string
	parts        []part
	cost, by     string
}{
	{"fails", failures, []part{head(401), end}, "10", "cost"},
	{"succeeds", failures, []part{head(200), end}, "0", "none"},
	{"the client leaves", failures, []part{reset(sim.ClientGone)}, "10", "cost"},
	{"the client leaves, free", noAnswer, []part{reset(sim.ClientGone)}, "0", "none"},
	{"the client leaves an answer", failures, []part{head(200), reset(sim.ClientGone)}, "0", "none"},
	{"the upstream breaks off", failures, []part{reset(sim.UpstreamReset)}, "10", "cost"},
	{"the upstream breaks off, free", noAnswer, []part{reset(sim.UpstreamReset)}, "0", "none"},
	{"the upstream garbles its answer", failures, []part{garbled}, "10", "cost"},
	{"the upstream takes too long", failures, []part{reset(sim.UpstreamTimeout)}, "10", "cost"},
	{"the upstream takes too long, free", noAnswer, []part{reset(sim.UpstreamTimeout)}, "0", "none"},
	{"the upstream takes too long amid an answer", failures, []part{head(200), reset(sim.UpstreamTimeout)}, "0", "none"},
	{"the upstream says that it took too long", failures, []part{head(504), end}, "0", "none"},
	{"tokens, the upstream takes too long", tokens, []part{reset(sim.UpstreamTimeout)}, "10", "estimate"},
	{
		name:  "redirected inside",
		parts: []part{func(x *sim.Exchange) error { return x.Redirect(&sim.Response{Status: 302}) }},
		cost:  "0",
		by:    "none",
	},

	{"gRPC", `"when":{"grpc_status":[7]}`, []part{head(200, grpcKind), trailers("grpc-status", "7")}, "10", "cost"},
	{
		name:   "gRPC, another status",
		settle: `"when":{"grpc_status":[7]}`,
		parts:  []part{head(200, grpcKind), trailers("grpc-status", "0")},
		cost:   "0",
		by:     "none",
	},
	{
		name:   "gRPC without its trailers",
		settle: `"when":{"grpc_status":[7]}`,
		parts:  []part{head(200, grpcKind), chunk("x"), reset(sim.ClientGone)},
		cost:   "10",
		by:     "cost",
	},

	{"header", `"to":{"header":"x-cost"}`, []part{head(200, [2]string{"x-cost", "77"}), end}, "77", "answer"},
	{"trailer", `"to":{"trailer":"x-cost"}`, []part{head(200), chunk("x"), trailers("x-cost", "78")}, "78", "answer"},
	{
		name:   "trailer that never came",
		settle: `"to":{"trailer":"x-cost"}`,
		parts:  []part{head(200), chunk("x"), reset(sim.UpstreamReset)},
		cost:   "10",
		by:     "cost",
	},
	{"bytes", `"to":"response_bytes"`, []part{head(200), chunk("12345"), chunk("678901234567"), end}, "17", "answer"},

	{
		name:   "tokens",
		settle: tokens,
		parts:  []part{head(200, jsonKind), chunk(tokensOfBody[:20]), chunk(tokensOfBody[20:]), end},
		cost:   "7",
		by:     "answer",
	},
	{
		name:   "tokens, encoded",
		settle: tokens,
		parts:  []part{head(200, jsonKind, [2]string{"content-encoding", "br"}), chunk(strings.Repeat("x", 400)), end},
		cost:   "100",
		by:     "estimate",
	},
	{
		name:   "price",
		settle: price,
		parts: []part{
			head(200, jsonKind), chunk(`{"model":"small-1","usage":{"prompt_tokens":30,"completion_tokens":4,`),
			chunk(`"prompt_tokens_details":{"cached_tokens":20}}}`), end,
		},
		cost: "55", // 10 × 2.5 + 20 × 0.5 + 4 × 5
		by:   "answer",
	},
	{"price of a model that is not named", price, []part{head(200, jsonKind), chunk(tokensOfBody), end}, "50", "answer"},
	{"price, no body", price, []part{head(204)}, "10", "estimate"},
	{"tokens, no body", tokens, []part{head(204)}, "10", "estimate"},
	{"a websocket", tokens, []part{head(101, jsonKind), chunk(tokensOfBody), reset(sim.ClientGone)}, "12", "estimate"},
	{"a tunnel", tokens, []part{head(200, jsonKind), chunk(tokensOfBody), reset(sim.ClientGone)}, "12", "estimate"},
}

// The filter asks the proxy how an answer ended, and settles once.
func TestSettlesByHowTheAnswerEnded(t *testing.T) {
	for _, step := range endings {
		t.Run(step.name, func(t *testing.T) {
			b := start(t, traced)
			require.NoError(t, b.Configure(policy(`{"name":"r","limits":["1000/1h"],"cost":10,"settle":{`+step.settle+`}}`)))
			r := &sim.Request{}
			if step.name == "a tunnel" {
				r.Method = "CONNECT"
			}
			x, err := b.Start(0, r)
			require.NoError(t, err)
			for _, p := range step.parts {
				require.NoError(t, p(x))
			}
			if !x.Ended() {
				require.NoError(t, x.Reset(sim.ClientGone))
			}
			require.JSONEq(t, `[{"rule":"r","held":10,"cost":`+step.cost+`,"by":"`+step.by+`"}]`, x.State()[settled])
		})
	}
}

// What a hold that ended early is charged is among the units that a rule with prices has charged.
func TestUnitsOfLapsedHoldsAreCounted(t *testing.T) {
	b := start(t, traced)
	require.NoError(t, b.Configure(policy(
		`{"name":"r","limits":["1000/1h"],"cost":10,"hold":"10s","max_hold":"10s","settle":{`+price+`}}`)))
	x, err := b.Start(0, &sim.Request{})
	require.NoError(t, err)
	for range 40 {
		b.now += 1e9
		b.tick(t)
	}
	answer := chunk(`{"model":"small-1","usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	for _, p := range []part{head(200, jsonKind), answer, end} {
		require.NoError(t, p(x))
	}
	require.JSONEq(t, `[{"rule":"r","held":10,"cost":8,"by":"answer"}]`, x.State()[settled])
	b.tick(t)
	require.EqualValues(t, 1, b.Metrics()["rule=.=r;.;rate_limit_holds_lost_total"])
	require.EqualValues(t, 10, b.Metrics()["rule=.=r;.;rate_limit_charged_units_total"])
}

// The length of a body is known even if the proxy does not show bodies.
func TestLengthOfWithheldBodiesIsKnown(t *testing.T) {
	b := start(t, traced, func(o *sim.Options) { o.Withheld = []string{"proxy_on_response_body"} })
	require.NoError(t, b.Configure(policy(`{"name":"r","limits":["1000/1h"],"cost":10,"settle":{"to":"tokens"}}`)))
	for range 2 {
		x, err := b.Start(0, &sim.Request{})
		require.NoError(t, err)
		for _, p := range []part{head(200,
			[2]string{"content-type", "application/json"}), chunk(strings.Repeat("x", 400)), end} {
			require.NoError(t, p(x))
		}
		require.JSONEq(t, `[{"rule":"r","held":10,"cost":100,"by":"estimate"}]`, x.State()[settled])
	}
	require.Equal(t, 1, strings.Count(strings.Join(b.log, "\n"), "allow proxy_on_response_body"))
}

// Streams that end one after the other take no memory, even if the proxy does not log them.
func TestEndsThatAreNotLogged(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.Withheld, o.OnCall = []string{"proxy_on_log"}, nil })
	require.NoError(t, b.Configure(policy(`{"name":"r","key":[{"header":"x-user-id"}],"limits":["9999/1h"],"settle":{}}`)))
	var running []*sim.Exchange
	for range 4000 { // with a fifth of the memory still free: the ends as such need a little
		x, err := b.Start(0, alice)
		require.NoError(t, err)
		running = append(running, x)
	}
	before := b.Memory(0)
	for _, x := range running {
		require.NoError(t, x.Reset(sim.ClientGone))
	}
	require.Equal(t, before, b.Memory(0))
}

// manyStreams is how many streams of one worker are open at once. The tag long raises it.
var manyStreams = 10_000

// Holds are renewed in portions, each within its eighth, so that no tick renews all of very many
// streams.
func TestHoldsAreRenewedInPortions(t *testing.T) {
	const eighth, eighths = 75, 9 // s
	count := manyStreams
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	require.NoError(t, b.Configure(policy(`{"name":"r","key":[{"header":"x-user-id"}],"limits":["1000/1h"],"settle":{}}`)))
	b.tick(t)
	before := b.Memory(0)
	var running []*sim.Exchange
	for n := range count {
		x, err := b.Start(0, asks(fmt.Sprint(n%1000)))
		require.NoError(t, err)
		running = append(running, x)
	}
	renewed := func() int { return int(b.Metrics()["rule=.=r;.;rate_limit_holds_renewed_total"]) }
	most, longest := 0, time.Duration(0)
	for second := range eighth * eighths {
		had, began := renewed(), time.Now()
		b.now += 1e9
		b.tick(t)
		longest = max(longest, time.Since(began))
		most = max(most, renewed()-had)
		require.GreaterOrEqual(t, renewed(), (second/eighth-1)*count, "after %d s", second)
	}
	t.Logf("of %d streams a tick renewed %d at most and took %v; memory: %d bytes each", count, most, longest,
		(b.Memory(0)-before)/uint64(count))
	require.LessOrEqual(t, most, count/(eighth-2)*11/10)
	require.LessOrEqual(t, b.Memory(0)-before, uint64(850*count))
	for _, x := range running {
		require.NoError(t, head(200)(x))
		require.NoError(t, end(x))
	}
	b.tick(t)
	require.Zero(t, b.Metrics()["rule=.=r;.;rate_limit_holds_lost_total"])
	require.Zero(t, b.Metrics()["rule=.=r;.;rate_limit_held_streams"])
}

// A stream of a gigabyte and one of ten minutes are charged what they say or, if they are cut, an
// estimate of what they had. They take as much memory as a short one.
func TestLongStreamsAreChargedInConstantMemory(t *testing.T) {
	const gigabyte, said = 1 << 30, `data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":500}}` + "\n\n"
	event := func(size int) string {
		return `data: {"choices":[{"delta":{"content":"` + strings.Repeat("four", size/4) + `"}}]}` + "\n\n"
	}
	b := start(t, traced, func(o *sim.Options) { o.OnCall = nil })
	require.NoError(t,
		b.Configure(policy(`{"name":"r","limits":["4000000000/1h"],"cost":10,"hold":"10s","settle":{"to":"tokens"}}`)))
	var memory uint64
	for _, step := range []struct {
		name, event string
		count       int
		pause       int64
		last        part
		cost, by    string
	}{
		{"short", event(64 << 10), 10, 0, chunk(said), "530", "answer"},
		{"a gigabyte", event(64 << 10), gigabyte >> 16, 0, chunk(said), "530", "answer"},
		{"a gigabyte, cut", event(64 << 10), gigabyte >> 16, 0, reset(sim.ClientGone), fmt.Sprint(gigabyte / 4), "estimate"},
		{"ten minutes", event(4), 6000, 1e8, chunk(said), "530", "answer"},
		{"ten minutes, cut", event(4), 6000, 1e8, reset(sim.ClientGone), "6000", "estimate"},
	} {
		x, err := b.Start(0, &sim.Request{})
		require.NoError(t, err)
		require.NoError(t, head(200, [2]string{"content-type", "text/event-stream"})(x))
		for n := range step.count {
			require.NoError(t, chunk(step.event)(x))
			b.now += step.pause
			if step.pause > 0 && n%10 == 0 {
				b.tick(t)
			}
		}
		require.NoError(t, step.last(x))
		if !x.Ended() {
			require.NoError(t, end(x))
		}
		require.JSONEq(t, `[{"rule":"r","held":10,"cost":`+step.cost+`,"by":"`+step.by+`"}]`, x.State()[settled], step.name)
		if memory == 0 {
			memory = b.Memory(0)
		}
		require.Equal(t, memory, b.Memory(0), step.name)
	}
	b.tick(t)
	require.Zero(t, b.Metrics()["rule=.=r;.;rate_limit_holds_lost_total"])
	require.Positive(t, b.Metrics()["rule=.=r;.;rate_limit_holds_renewed_total"])
}
