package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	policies "github.com/sluice-ratelimit/sluice/shared/policy"
)

const busy = `{"name":"busy now","limits":["1/1h"],"response":{"status":503,"body":"busy: %RULE%, %LIMIT%\n","content_type":"text/html",
	"headers":{"X-Reason":"%RULE%","x-wait":"%RETRY_AFTER%"},"grpc_status":"unavailable"}}`

// A denial is the rule's response. For a gRPC request it is a trailers-only response.
func TestDenialIsTheRulesResponse(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(policy(busy)))
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	res := b.serve(t, 0, alice)
	require.Equal(t, 503, res.Status)
	require.Equal(t, "busy: busy now, 1\n", string(res.Body))
	require.Equal(t, "rate_limited{busy_now}", res.Details)
	want := [][2]string{
		{"content-length", "18"}, {"content-type", "text/html"}, {"retry-after", "800"},
		{"x-envoy-ratelimited", "true"}, {"x-reason", "busy now"}, {"x-wait", "800"},
	}
	require.ElementsMatch(t, want, res.Headers)
	require.Equal(t, []string{"get_current_time_nanoseconds", "get_shared_data", "set_property", "send_local_response"}, b.calls)

	res = b.serve(t, 0, &sim.Request{Headers: [][2]string{{"content-type", "application/grpc+proto"}}})
	require.Equal(t, 200, res.Status)
	require.Empty(t, res.Body)
	require.Equal(t, 14, res.GRPCStatus)
	require.ElementsMatch(t, [][2]string{
		{"content-type", "application/grpc"}, {"grpc-status", "14"}, {"grpc-message", "busy: busy now, 1%0A"}, {"retry-after", "800"},
		{"x-envoy-ratelimited", "true"}, {"x-reason", "busy now"}, {"x-wait", "800"},
	}, res.Headers)
	res = b.serve(t, 0, &sim.Request{Method: "HEAD"})
	require.Equal(t, 503, res.Status)
	require.Empty(t, res.Body)
}

// Who lacks a part of the key gets a response that says so, and the details say it to logs.
func TestDenialForWantOfAKey(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(policy(`{"name":"per user","key":[{"header":"x-user-id"}],"missing_key":{"deny":{"status":401,"grpc_status":"unauthenticated"}},"limits":["1/1h"]}`)))
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	res := b.serve(t, 0, &sim.Request{})
	require.Equal(t, 401, res.Status)
	require.Equal(t, "missing header x-user-id", string(res.Body))
	require.Equal(t, "missing_key{per_user}", res.Details)
	require.Equal(t, "per%20user=denied:missing_key", res.State["sluice.verdict"])
	require.ElementsMatch(t, [][2]string{{"content-length", "24"}, {"content-type", "text/plain"}, {"x-envoy-ratelimited", "true"}}, res.Headers)
	require.Equal(t, "rate_limited{per_user}", b.serve(t, 0, alice).Details)

	res = b.serve(t, 0, &sim.Request{Headers: [][2]string{{"content-type", "application/grpc"}}})
	require.Equal(t, 200, res.Status)
	require.Equal(t, 16, res.GRPCStatus)
	require.Contains(t, res.Headers, [2]string{"grpc-message", "missing header x-user-id"})
}

// Access logs get every verdict that is more than "allowed", and all verdicts if the
// node's metadata says so.
func TestVerdictsForAccessLogs(t *testing.T) {
	rules := policy(`{"name":"r","key":[{"header":"x-user-id"}],"limits":["3/1h"]},{"name":"trial","mode":"shadow","limits":["1/1h"]}`)
	words := func(b *bench) (list []string) {
		require.NoError(t, b.Configure(rules))
		for range 4 {
			list = append(list, b.serve(t, 0, alice).State["sluice.verdict"])
		}
		require.NotContains(t, strings.Join(list, " "), "alice")
		return list
	}
	notable := []string{"", "r=allowed,trial=shadow_denied:limit", "r=allowed,trial=shadow_denied:limit", "r=denied:limit,trial=shadow_skipped"}
	require.Equal(t, notable, words(start(t)))
	all := slices.Clone(notable)
	all[0] = "r=allowed,trial=shadow_allowed"
	require.Equal(t, all, words(start(t, func(o *sim.Options) {
		o.Properties = map[string][]byte{"xds.node.metadata.sluice.verdicts": []byte("all")}
	})))
	require.Equal(t, notable, words(start(t, func(o *sim.Options) {
		o.Properties = map[string][]byte{"xds.node.metadata.sluice.verdicts": []byte("denied")}
	})))
}

// The upstream's own rate limit fields are kept, or made stricter by ours.
func TestUpstreamFieldsAreKept(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(`{"version":1,"headers":"both","rules":[{"name":"r","algorithm":"fixed_window_per_key","limits":["9/1h"]}]}`)))
	serve := func(sent ...[2]string) (got []string) {
		res := b.serve(t, 0, &sim.Request{Upstream: func(*sim.Request) (*sim.Response, error) {
			return &sim.Response{Status: 200, Headers: sent}, nil
		}})
		for _, f := range res.Headers {
			got = append(got, f[0]+": "+f[1])
		}
		return got
	}
	require.Equal(t, []string{
		`ratelimit-policy: "r";q=9;w=3600`, `ratelimit: "r";r=8;t=3600`,
		"x-ratelimit-limit: 9, 9;w=3600", "x-ratelimit-remaining: 8", "x-ratelimit-reset: 3600",
	}, serve())
	require.Equal(t, []string{
		"server: up", "retry-after: 7", `ratelimit-policy: "r";q=9;w=3600`, `ratelimit: "a";r=1,"b";r=2, "r";r=7;t=3600`,
		"x-ratelimit-limit: 100, 9;w=3600", "x-ratelimit-remaining: 2", "x-ratelimit-reset: 60",
	}, serve([2]string{"server", "up"}, [2]string{"ratelimit", `"a";r=1`}, [2]string{"ratelimit", `"b";r=2`}, [2]string{"retry-after", "7"},
		[2]string{"x-ratelimit-limit", "100"}, [2]string{"x-ratelimit-remaining", "2"}, [2]string{"x-ratelimit-reset", "60"}))
	require.Equal(t, []string{
		`ratelimit-policy: "r";q=9;w=3600`, `ratelimit: "r";r=6;t=3600`,
		"x-ratelimit-limit: 9, 9;w=3600", "x-ratelimit-remaining: 6", "x-ratelimit-reset: 3600",
	}, serve([2]string{"x-ratelimit-remaining", "many"}))
}

// The log has the path and code of each problem of a refused policy, up to a
// bound.
func TestLogOfARefusedPolicy(t *testing.T) {
	for _, text := range []string{
		`{"version":1,"headers":"ieft","rules":[{"name":"r","limits":["10/fortnight"],"response":{"status":200,"headers":{"x":"%RUEL%"}}}]}`,
		`{"version":1,"rules":[` + strings.TrimSuffix(strings.Repeat(`{"name":"r"},`, 60), ",") + `]}`,
	} {
		doc, err := policies.ParseJSON([]byte(text))
		require.NoError(t, err)
		_, problems := policies.ReadPushed(doc)
		b := start(t)
		require.Error(t, b.Configure([]byte(text)))
		var want []string
		for i := range problems {
			if i == 50 {
				want = append(want, fmt.Sprintf("critical: sluice: policy refused: and %d more problems: sluice validate prints them", len(problems)-50))
				break
			}
			require.Zero(t, problems[i].Line)
			want = append(want, "critical: sluice: policy refused: "+problems[i].Error())
		}
		require.Equal(t, want, b.log[:len(want)])
		require.NotContains(t, strings.Join(b.log[len(want):], "\n"), "policy refused")
	}
}
