package main_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
)

// kinds are rules of each kind, with the host calls of a request, and how many texts the filter
// allocates for it, such as a Retry-After.
var kinds = []struct {
	name, rules, calls string
	texts              int
}{
	{"no rule matches", `{"name":"r","match":{"hosts":["elsewhere"]},"limits":["1000000/1h"]}`, "header", 0},
	{"one window", keyedBy(`"limits":["1000000/1h"]`), "header time get set", 0},
	{"three windows", keyedBy(`"limits":["1000000/1m","1000000/1h","1000000/1d"]`), "header time get set", 0},
	{
		name:  "fixed window per key",
		rules: keyedBy(`"limits":[{"requests":1000000,"per":"1h","algorithm":"fixed_window_per_key"}]`),
		calls: "header time get set",
	},
	{
		name:  "sliding counter",
		rules: keyedBy(`"limits":[{"requests":1000000,"per":"1h","algorithm":"sliding_window_counter"}]`),
		calls: "header time get set",
	},
	{
		name:  "sliding log",
		rules: keyedBy(`"limits":[{"requests":100,"per":"1m","algorithm":"sliding_window_log"}]`),
		calls: "header time get set",
	},
	{
		name:  "token bucket",
		rules: keyedBy(`"limits":[{"requests":1000000,"per":"1h","algorithm":"token_bucket"}]`),
		calls: "header time get set",
	},
	{"leased units", keyedBy(`"scope":"cluster","limits":["1000000/1h"]`), "header time get set", 0},
	{"client address", `{"name":"r","key":["client_ip"],"limits":["1000000/1h"]}`, "property time get set", 0},
	{"denied", keyedBy(`"limits":["1/366d"]`), "header time get set_property reply", 1},
	{"three rules", `{"name":"a","key":[{"header":"x-user-id"}],"limits":["1000000/1h"]},` +
		`{"name":"b","key":["client_ip"],"limits":["1000000/1h"]},{"name":"c","limits":["1000000/1h"]}`,
		"header property time get get get set set set",
		0},
	{"windows of all algorithms", keyedBy(layers(1_000_000)), "header time get set", 0},
	{
		name:  "an override",
		rules: keyedBy(layers(0) + `,"overrides":[{"key":["~u.*"],"limits":["1000000/1h"]}]`),
		calls: "header time get set",
	},
	{"an unlimited key", keyedBy(`"limits":["0/1h"],"overrides":[{"key":["user-*"],"unlimited":true}]`), "header time", 0},
	{"denied by one of all", keyedBy(layers(1)), "header time get set_property reply", 1},
	{
		name:  "a denial that counts",
		rules: keyedBy(`"limits":["1/366d"],"count_denied":true`),
		calls: "header time get set set_property reply",
		texts: 1,
	},
	{"shadow", keyedBy(layers(1) + `,"mode":"shadow"`), "header time get set_property", 0},
	{"what is matched", `{"name":"r","limits":["1000000/1h"],"cost":{"header":"c"},"exempt":[{"methods":["POST"]},
		{"paths":["/v2*","/v3"]},{"hosts":["a","*.b"]}],
		"match":{"client_ips":["10.0.0.0/8","192.0.0.0/16"],"paths":["/v1/*"],"headers":{"x-user-id":"~u.*"}}}`,
		"header property property header header property time get set",
		0},
	{"what is text", `{"name":"r","key":[{"query":"q"},{"cookie":"c"},"route",{"path":{"segment":2}},
		{"property":["request","protocol"]},{"first_of":[{"header":"none"},{"query":"q"}]}],"cost":{"query":"n"},
			"limits":["1000000/1h"]}`,
		"header property property property header time get set", 0},
	{
		name:  "a claim",
		rules: `{"name":"r","key":[{"jwt":{"provider":"p","claim":["sub"]}}],"limits":["1000000/1h"]}`,
		calls: "property time get set",
	},
	{
		name:  "a missing key",
		rules: `{"name":"r","key":[{"header":"none"}],"missing_key":"deny","limits":["1/1h"]}`,
		calls: "header time set_property reply",
	},
	{"a key that takes another's place", keyedBy(`"capacity":1,"limits":["1000000/1h",{"requests":1000000,"per":"1m",
		"algorithm":"fixed_window_per_key"},
		{"requests":1000000,"per":"3m","algorithm":"sliding_window_counter"},{"requests":1000000,"per":"4m",
			"algorithm":"token_bucket"}]`),
		"header time get set",
		0},
	{"outside the share", keyedBy(layers(1) + `,"enforce_percent":0`), "header time get set_property", 0},
}

// layers returns windows of each algorithm, the first with a limit of n.
func layers(n int) string {
	return fmt.Sprintf(`"limits":["%d/1h",{"requests":1000000,"per":"1d","offset":"4h","jitter":20},
		{"requests":1000000,"per":"1m","algorithm":"fixed_window_per_key"},{"requests":500,"per":"2m",
			"algorithm":"sliding_window_log"},
		{"requests":1000000,"per":"3m","algorithm":"sliding_window_counter"},{"requests":1000000,"per":"4m",
			"algorithm":"token_bucket"}]`, n)
}

func keyedBy(rest string) string { return `{"name":"r","key":[{"header":"x-user-id"}],` + rest + `}` }

// short abbreviates the names of host calls for kinds.
var short = strings.NewReplacer("get_header_map_value", "header", "get_current_time_nanoseconds", "time",
	"get_shared_data", "get", "set_shared_data", "set", "get_property", "property", "send_local_response", "reply")

// A request makes exactly these host calls. After the first request of its kind, it allocates only
// these texts.
func TestWhatARequestCosts(t *testing.T) {
	const many = 1000
	claims, err := structpb.NewStruct(map[string]any{"p": map[string]any{"sub": "alice"}})
	require.NoError(t, err)
	var requests []*sim.Request
	for i := range many {
		requests = append(requests, &sim.Request{
			ClientIP: fmt.Sprintf("192.0.%d.%d", 2+i/250, 1+i%250), Path: "/v1/x/y?q=a&n=2",
			Headers:    [][2]string{{"x-user-id", fmt.Sprint("user-", i)}, {"cookie", "b=1; c=2"}, {"c", "3"}},
			Properties: map[string][]byte{"xds.route_name": []byte("main")},
			Metadata:   map[string]*structpb.Struct{jwt: claims},
		})
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			b := start(t, func(o *sim.Options) {
				o.Wasm = buildtest.Wasm(t, "sluice_variant")
				o.Dial = func(_ sim.Call, in *sim.Inbox) (sim.Peer, error) { return prompt{in: in, ahead: 1_000_000}, nil }
			})
			require.NoError(t, b.Configure(policy(kind.rules)))
			serve := func(n int) {
				for _, r := range requests[:n] {
					b.now += 1_000_000
					x, err := b.Start(0, r)
					require.NoError(t, err)
					for x.Paused() {
						b.TickDue()
					}
					_, err = x.Finish()
					require.NoError(t, err)
				}
			}
			serve(many) // in a table with room for 65,536
			b.calls = nil
			serve(1)
			require.Equal(t, kind.calls, short.Replace(strings.Join(b.calls, " ")))
			before := b.mallocs(t)
			serve(many)
			require.EqualValues(t, kind.texts*many, b.mallocs(t)-before)
		})
	}
}

// mallocs returns how often the filter has allocated memory.
func (b *bench) mallocs(t *testing.T) uint64 {
	n, err := b.Ask(0, "sluice_mallocs")
	require.NoError(t, err)
	return n
}

// manyRules returns a policy of n rules, each for another host and path.
func manyRules(n int) []byte {
	var rules []string
	for i := range n {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","match":{"hosts":["h%d.example"],"paths":["/v1/r%d/*"]},
			"key":[{"header":"x-user-id"}],"limits":["4000000000/1h"],"capacity":16}`, i, i, i))
	}
	return policy(strings.Join(rules, ","))
}

// spent returns the mean processor time of n calls of f. Other processes do not count,
// except that they use the caches.
func spent(t *testing.T, n int, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := proctest.ThreadTime()
	require.NoError(t, err)
	for range n {
		f()
	}
	after, err := proctest.ThreadTime()
	require.NoError(t, err)
	return (after - before) / time.Duration(n)
}

// The filter adds less than twice as much time to a request that matches the last of
// a thousand rules as to one that matches the last of ten. The time without any rule
// is subtracted from both.
func TestThousandRulesCostLessThanTwiceTen(t *testing.T) {
	type subject struct {
		*bench
		request *sim.Request
		times   []time.Duration
	}
	subjects := make([]*subject, 0, 3)
	for _, n := range []int{0, 10, 1000} {
		b := start(t, func(o *sim.Options) { o.OnCall = nil })
		require.NoError(t, b.Configure(manyRules(n)))
		subjects = append(subjects, &subject{bench: b, request: &sim.Request{
			Host: fmt.Sprintf("h%d.example", n-1), Path: fmt.Sprintf("/v1/r%d/x", n-1), Headers: alice.Headers,
		}})
	}
	for range 101 {
		for _, s := range subjects { // in turn, so that all of them get quiet moments
			s.times = append(s.times, spent(t, 20, func() {
				res, err := s.Serve(0, s.request)
				require.NoError(t, err)
				require.Equal(t, 200, res.Status)
			}))
		}
	}
	var quiet []time.Duration // other processes only ever add time
	for _, s := range subjects {
		quiet = append(quiet, slices.Min(s.times))
	}
	ratio := float64(quiet[2]-quiet[0]) / float64(quiet[1]-quiet[0])
	t.Logf("a request takes %v without rules, %v with 10, %v with 1,000: %.2f times as much added", quiet[0], quiet[1],
		quiet[2], ratio)
	require.Less(t, ratio, 2.0)
	require.Positive(t, subjects[2].Shared().Len(), "the last rule counted")
}

// agents are the most expensive expressions that a policy can have, with texts that
// they read to the end.
var agents = []struct{ expression, text string }{
	{`(?i).*(bot|crawler|spider|slurp).*`, "Mozilla/5.0 slur craw "},
	{`(?:.{0,9}a)*`, "ab"},
	{`(?:.*\\pL.*\\pN.*\\pS){20}`, "λ١€"},
	{`(?i)(?:[^x]*\\w\\b.\\b)*`, "ab cd "},
}

// An expression takes well below a millisecond of a worker, however long a header is:
// a value longer than the bound is not matched.
func TestExpressionOnALongHeader(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	const rounds = 25
	fastest := func(r *sim.Request) time.Duration {
		best := time.Hour
		for range rounds {
			best = min(best, spent(t, 1, func() { require.Equal(t, 200, b.serve(t, 0, r).Status) }))
		}
		return best
	}
	worst := time.Duration(0)
	for _, a := range agents {
		for _, size := range []int{automaton.MaxValueBytes, 58_000} {
			text := strings.Repeat(a.text, size/len(a.text))
			r := &sim.Request{Headers: [][2]string{{"user-agent", text}}}
			require.NoError(t,
				b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"never"}},"limits":["9000/1h"]}`)))
			without := fastest(r)
			require.NoError(t,
				b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"~`+a.expression+`"}},"limits":["9000/1h"]}`)))
			took := fastest(r) - without
			t.Logf("%s on %d bytes: %v", a.expression, len(text), took)
			worst = max(worst, took)
		}
	}
	t.Logf("an expression on a header of up to 58,000 bytes takes at most %v of a worker", worst)
	require.Less(t, worst, 3*time.Millisecond, "of a processor: the target is 1 ms")
}

// A VM returns no memory, so later configurations must re-use what earlier ones have
// left behind. The heap doubles when it is full, and the collector takes numbers among
// the constants for pointers. Two policies of 220 rules nearly fill 16 MiB, so that such
// numbers decide whether it doubles; 180 leave room.
func TestMemoryOfLargePoliciesIsBounded(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	var used []uint64
	for i := range 40 {
		require.NoError(t, b.Configure(manyRules(160+i%20)))
		used = append(used, b.Memory(0)>>20)
	}
	t.Logf("MiB after each: %d", used)
	require.LessOrEqual(t, used[39], uint64(16))
}
