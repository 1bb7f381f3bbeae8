package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// hostilePolicy reads everything in a request that a policy can read.
const hostilePolicy = `{"version":1,"headers":"both",` + manage + `,"rules":[
	{"name":"alice","key":[{"header":"x-user-id"}],"limits":["2/1h"],"match":{"headers":{"x-user-id":"alice"}}},
	{"name":"keyed","key":[{"header":"k"},"host","method",{"path":"full"},{"client_ip":{}}],"missing_key":"share",
		"match":{"paths":["/*","~.*"],"headers":{"h0":"~(a|b)*c?.*"}},
		"capacity":64,"count_denied":true,"enforce_percent":90,"cost":{"header":"x-cost","max":5},
		"limits":["2/1h",{"requests":3,"per":"1d","jitter":9},
			{"requests":4,"per":"1m","algorithm":"sliding_window_log"},
			{"requests":5,"per":"1m","algorithm":"sliding_window_counter"}],
		"overrides":[{"key":["*k","*","*","*","*"],"unlimited":true},
			{"key":["~(a|b|[^a-z])*","*","*","/*","*"],"limits":["9/1h"]}]},
	{"name":"odd","key":[{"query":"q"},{"cookie":"c"},"route",{"jwt":{"provider":"p","claim":["a","0"]}},
			{"property":["source","port"]},
			{"first_of":[{"header":"k"},{"query":"k"},{"property":["filter_state","k"]}]}],
		"missing_key":"share","capacity":64,"cost":{"query":"n","max":3},"limits":["9/1h"],
		"match":{"headers":{"x-user-id":"!"}},"exempt":[{"headers":{"h0":"~(x|y)+"},"client_ips":["10.0.0.0/8"]}],
		"overrides":[{"key":["*","*","*","*","*","~header:k=(a|b)*"],"unlimited":true}]},
	{"name":"segment","key":[{"path":{"segment":3}}],"missing_key":"deny","match":{"headers":{"deny":"*"}},
		"limits":["0/1h"]}]}`

const jwt = "envoy.filters.http.jwt_authn"

// deep returns a claim of this depth.
func deep(depth int) *structpb.Struct {
	s := &structpb.Struct{}
	for range depth {
		s = &structpb.Struct{Fields: map[string]*structpb.Value{"p": structpb.NewStructValue(s)}}
	}
	return s
}

func hostileRequests() []*sim.Request {
	long := strings.Repeat("k", 10_000)
	many := make([][2]string, 100)
	for i := range many {
		many[i] = [2]string{fmt.Sprintf("h%d", i), strings.Repeat("ab", 300)}
	}
	requests := []*sim.Request{
		{Headers: [][2]string{{"h0", strings.Repeat("ab", 30_000)}}},
		{Headers: many},
		{Headers: [][2]string{{"h0", ""}, {"k", long}, {"deny", long}}},
		{Headers: [][2]string{{"h0", "\xff\xfe\x00"}, {"k", "\xff\x00\xf0"}}, Path: "/\xff/\x00/\xc3"},
		{Headers: [][2]string{{"h0", "c"}, {"k", long}, {"k", long}}, Path: "no-slash"},
		{Headers: [][2]string{{"h0", "c"}}, Path: "/" + strings.Repeat("/", 8000) + "?" + long},
		{Headers: [][2]string{{"h0", "c"}}, Path: "*", Method: "OPTIONS", Host: ":"},
		{Headers: [][2]string{{"h0", "c"}}, Host: "[::1", Method: "\xffGET", Path: "?"},
		{Headers: [][2]string{{"h0", "c"}, {"deny", ""}}, Path: "#"},
		{Path: "/?" + strings.Repeat("q=%zz&%71=%&", 4000) + "n=-99999999999999999999999"},
		{Path: "/?" + strings.Repeat("&", 60_000) + "q=+%00%ff&n=1e9&n=2"},
		{Headers: [][2]string{{"cookie", strings.Repeat("c;", 20_000)}, {"cookie", strings.Repeat("=,", 10_000) + "c=\""}}},
		{Headers: [][2]string{{"cookie", `a=1,2; c="\xff` + long}}, Metadata: map[string]*structpb.Struct{jwt: deep(1000)}},
		{Properties: map[string][]byte{
			"metadata":       []byte("\x0a\xff\xff\xff\xff\x7f"),
			"source.port":    []byte("x"),
			"filter_state.k": []byte(long),
			"xds.route_name": {0},
		}},
		{Properties: map[string][]byte{"metadata": []byte(strings.Repeat("\x0a\x03\x0a\x01p", 10_000)), "source.port": {}}},
		{Headers: [][2]string{{"authorization", "Bearer " + long}}, Path: "/.sluice/counters/hit?%zz=%&n=-1"},
		{Headers: [][2]string{{"authorization", "Bearer test"}}, Path: "/.sluice/counters/hit?%zz", Method: "POST"},
		{Headers: [][2]string{{"authorization", "Bearer test"}}, Path: "/.sluice/counters/" + long, Method: "POST"},
		{
			Headers: [][2]string{{"authorization", "Bearer test"}},
			Path:    "/.sluice/counters/hit?rule=keyed&key=\xff&n=9",
			Method:  "POST",
		},
		{
			Headers: [][2]string{{"authorization", "Bearer test"}},
			Path:    "/.sluice/counters/set?rule=keyed&key=\xff&key=&key=&key=&key=" + long + "&n=4294967295&window=2",
			Method:  "POST",
		},
		{
			Headers: [][2]string{{"authorization", "Bearer test"}},
			Path:    "/.sluice/counters/inc?rule=alice&key=alice&n=1&window=" + long,
			Method:  "POST",
		},
		{
			Headers: [][2]string{{"authorization", "Bearer test"}},
			Path:    "/.sluice/counters/stats?rule=\x00&key=1",
			Method:  "POST",
		},
	}
	for _, cost := range []string{"", "-1", "-", "+", "0", "1e99", "0x7", strings.Repeat("9",
		20_000), "١", "5,5", "NaN", "\x00"} {
		requests = append(requests, &sim.Request{Headers: [][2]string{{"h0", "c"}, {"x-cost", cost}, {"k", cost}}})
	}
	return requests
}

// A hostile request changes nothing but its own verdict. The VM does not end, logs no
// panic, and its memory does not grow. Other keys' usage stays the same, byte for
// byte.
func TestHostileRequestsChangeNothingElse(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	require.NoError(t, b.Configure([]byte(hostilePolicy)))
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	honest := b.Shared().Snapshot() // the seed, the directory, alice's page
	delete(honest, "sluice/tables") // the first request of another rule changes it
	configured, sent := b.Memory(0), uint64(0)
	for round := range 40 {
		for i, r := range hostileRequests() {
			sent += uint64(len(fmt.Sprint(r.Headers, r.Path)))
			res := b.serve(t, 0, r)
			require.Contains(t, []int{200, 400, 401, 405, 404, 429}, res.Status, "request %d", i)
			require.NoError(t, b.Failed(0), "request %d", i)
			for _, f := range res.Headers {
				require.False(t, strings.ContainsAny(f[1], "\r\n\x00"), "request %d: %q", i, f)
			}
		}
		if round == 0 {
			require.NoError(t, b.Tick(0))
		}
	}
	t.Logf("the VM has %d bytes, %d when it was configured, and was sent %d", b.Memory(0), configured, sent)
	require.Less(t, b.Memory(0), configured+8<<20, "the collector's slack")
	require.Greater(t, sent, uint64(16<<20))
	after := b.Shared().Snapshot()
	for key, value := range honest {
		require.Equal(t, value, after[key], "%q", key)
	}
	require.NotContains(t, strings.Join(b.log, "\n"), "panic")
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	require.Equal(t, 429, b.serve(t, 0, alice).Status)
	require.LessOrEqual(t, b.Shared().Len(), 3+1+7+7,
		"the seed, the directory, the owners and the pages of 1 + 64 + 64 keys, 16 slots in each of the latter")
}
