package respond_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A denial gets the response of the rule it is attributed to, with the values
// of that rule's tightest window.
func TestResponseOfTheDenyingRule(t *testing.T) {
	p := hosttest.New()
	p.Clock = 1_500_000_000
	e := compileJSON(t, p, `{"name":"open","limits":["9/1h"],"response":{"status":418}},
		{"name":"Größe \"1\"","key":[{"header":"u"}],"limits":["7/1m","2/10s"],"response":{
			"status":503,"body":"%RULE% %RETRY_AFTER%/%LIMIT%/%REMAINING% 5%%","content_type":"text/html",
			"headers":{"x-fixed":"a","x-values":"%RULE%;%RETRY_AFTER%;%LIMIT%;%REMAINING%;%%"},"grpc_status":14}},
		{"name":"late","limits":["1/1h"],"response":{"status":400},"match":{"headers":{"late":"*"}}}`)
	p.With("u", "alice", "late", "")
	require.Nil(t, e.Decide().DeniedBy())
	require.EqualValues(t, 400, e.Decide().Response().Status, "the third rule denies; the others have room")
	p.With("u", "alice")
	delete(p.Headers, "late")
	require.True(t, e.Decide().Allowed)
	v := e.Decide()
	require.False(t, v.Allowed)
	require.EqualValues(t, 503, v.Response().Status)
	require.EqualValues(t, 14, v.Response().GRPCStatus)
	require.Equal(t, `Größe "1" 9/2/0 5%`, string(respond.AppendBody(nil, v)))
	require.Equal(t, []respond.Field{
		{"retry-after", "9"}, {"x-envoy-ratelimited", "true"}, {"content-type", "text/html"},
		{"x-fixed", "a"}, {"x-values", `Gr??e "1";9;2;0;%`},
	}, appendFields(policy.HeadersNone, v))
}

// Where there is no figure, the body says so and the header is left out.
func TestResponseWithoutFigures(t *testing.T) {
	ratelimited := respond.Field{"x-envoy-ratelimited", "true"}
	const response = `"response":{"body":"%RETRY_AFTER%/%LIMIT%/%REMAINING%/%MISSING%",` +
		`"headers":{"x-a":"%RETRY_AFTER%","x-b":"%LIMIT%","x-c":"%REMAINING%","x-d":"%RULE%","x-e":"%MISSING%"}}`
	for _, c := range []struct {
		name, rule, fail, body string
		fields                 []respond.Field
	}{
		{
			name:   "missing key",
			rule:   `"key":[{"header":"none"}],"missing_key":"deny","limits":["9/1h"]`,
			body:   "-/-/-/header none",
			fields: []respond.Field{{"x-e", "header none"}},
		},
		{"never", `"limits":["0/1h"]`, "", "-/0/0/-", []respond.Field{ratelimited, {"x-b", "0"}, {"x-c", "0"}}},
		{
			name:   "error",
			rule:   `"limits":["9/1h"],"on_error":"deny"`,
			fail:   "get",
			body:   "1/-/-/-",
			fields: []respond.Field{ratelimited, {"retry-after", "1"}, {"x-a", "1"}},
		},
	} {
		p := hosttest.New()
		p.Fail = c.fail
		e := compileJSON(t, p, `{"name":"r",`+c.rule+`,`+response+`}`)
		v := e.Decide()
		require.False(t, v.Allowed, c.name)
		require.Equal(t, c.body, string(respond.AppendBody(nil, v)), c.name)
		fields := appendFields(policy.HeadersNone, v)
		require.ElementsMatch(t, append(c.fields, respond.Field{"x-d", "r"}), fields, c.name)
	}
}

// A gRPC client reads code, message and wait of a denial from its details. Where no wait helps there are none.
func TestRetryInfoSaysTheWait(t *testing.T) {
	for _, tc := range []struct {
		limit, response string
		seconds         int64 // 0: no details
		code            int32
		message         string
	}{
		{"2/10s", `{"grpc_retry_info":true}`, 9, 8, "rate limit exceeded"},
		{"2/366d", `{"grpc_retry_info":true,"grpc_status":14,"body":"größer %LIMIT%"}`, 366*86400 - 1, 14, "größer 2"},
		{"2/10s", `{"grpc_retry_info":true,"body":"` + strings.Repeat("x", 4096) + `"}`, 9, 8, strings.Repeat("x", 4096)},
		{"2/10s", `{"grpc_retry_info":true,"body":""}`, 9, 8, ""},
		{"2/10s", `{"grpc_retry_info":false}`, 0, 0, ""},
		{"2/10s", `{}`, 0, 0, ""},
		{"0/10s", `{"grpc_retry_info":true}`, 0, 0, ""},
	} {
		p := hosttest.New()
		p.Clock = 1_500_000_000
		e := compileJSON(t, p, `{"name":"r","algorithm":"fixed_window_per_key",`+
			`"limits":["`+tc.limit+`"],"response":`+tc.response+`}`)
		e.Decide()
		e.Decide()
		p.Clock += 1_000_000_000
		v := e.Decide()
		require.False(t, v.Allowed)
		got := appendFields(policy.HeadersNone, v)
		i := slices.IndexFunc(got, func(f respond.Field) bool { return f.Name == "grpc-status-details-bin" })
		if tc.seconds == 0 {
			require.Negative(t, i, tc.response)
			continue
		}
		raw, err := base64.RawStdEncoding.DecodeString(got[i].Value)
		require.NoError(t, err)
		var st spb.Status
		require.NoError(t, proto.Unmarshal(raw, &st))
		require.Equal(t, tc.code, st.Code)
		require.Equal(t, tc.message, st.Message)
		require.Len(t, st.Details, 1)
		var info errdetails.RetryInfo
		require.NoError(t, st.Details[0].UnmarshalTo(&info))
		require.Equal(t, time.Duration(tc.seconds)*time.Second, info.RetryDelay.AsDuration())
	}
}

// A client that is denied for want of a key part is told which, never what others send. No
// limit was reached, so the denial does not say so: Envoy would retry it by envoy-ratelimited.
func TestResponseToAMissingKey(t *testing.T) {
	for key, want := range map[string]string{
		`{"header":"X-User-Id"}`: "missing header x-user-id",
		`"host",{"query":"token"},` +
			`{"cookie":"sid"}`: "missing query token, cookie sid",
		`{"header":{"name":"authorization","scheme":"Bearer"}},` +
			`{"path":{"segment":2}}`: "missing header authorization (bearer), path segment 2",
		`{"first_of":[{"header":"x-api-key"},{"cookie":"sid"},` +
			`{"address":{"header":"x-client"}}]}`: "missing header x-api-key or cookie sid or address in header x-client",
		`{"jwt":{"provider":"p","claim":["org","id"]}},{"property":["connection","uri_san_peer_certificate"]},"route",` +
			`"client_ip"`: "missing jwt claim org.id, property:connection.uri_san_peer_certificate, route, client_ip",
	} {
		p := hosttest.New()
		p.With(":path", "/a", ":authority", "secret.example")
		p.Client = ""
		e := compileJSON(t, p,
			`{"name":"r","key":[`+key+`],"missing_key":{"deny":{"status":401,"grpc_status":16}},"limits":["9/1h"]}`)
		v := e.Decide()
		require.True(t, v.LacksKey(), key)
		require.EqualValues(t, 401, v.Response().Status)
		require.EqualValues(t, 16, v.Response().GRPCStatus)
		require.Equal(t, want, string(respond.AppendBody(nil, v)))
		require.Empty(t, appendFields(policy.HeadersBoth, v))
	}
}

// An empty body has no type, and a plain one that of the proxy.
func TestContentTypeIsSetIfNeeded(t *testing.T) {
	for response, want := range map[string]bool{
		`{"content_type":"text/html"}`:           true,
		`{"content_type":"text/html","body":""}`: false,
		`{"content_type":"text/plain"}`:          false,
		`{}`:                                     false,
	} {
		e := compileJSON(t, hosttest.New(), `{"name":"r","limits":["0/1h"],"response":`+response+`}`)
		fields := appendFields(policy.HeadersNone, e.Decide())
		if want {
			require.Contains(t, fields, respond.Field{"content-type", "text/html"}, response)
		} else {
			require.Len(t, fields, 1, response)
		}
	}
}

// A bucket has its burst as limit, and what it gains in a period as quota.
func TestFieldsOfABucket(t *testing.T) {
	e := compileJSON(t, hosttest.New(),
		`{"name":"r","algorithm":"token_bucket","limits":[{"requests":600,"per":"1m","burst":50},"60/2m"]}`)
	require.Equal(t, []respond.Field{
		{"ratelimit-policy", `"r/0";q=50, "r/1";q=60;w=120`}, {"ratelimit", `"r/0";r=49;t=1, "r/1";r=59;t=2`},
		{"x-ratelimit-limit", "50, 600;w=60;burst=50, 60;w=120"}, {"x-ratelimit-remaining", "49"}, {"x-ratelimit-reset", "1"},
	}, appendFields("both", e.Decide()))
}

func compileJSON(t testing.TB, host engine.Host, rules string) *engine.Engine {
	t.Helper()
	return engine.New(hosttest.Policy(t, rules), host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

func appendFields(style policy.Headers, v *decide.Verdict) []respond.Field {
	f := respond.Fields{Style: style}
	return f.Append(nil, v)
}

func TestFieldsOfEachStyle(t *testing.T) {
	p := hosttest.New()
	p.Clock = 1_500_000_000
	rules := `{"name":"a","limits":["9/10s",{"requests":20,"per":"1d","name":"daily"}]},{"name":"b\"",` +
		`"limits":["3/500ms"]}`
	e := compileJSON(t, p, rules)
	fields := func(style policy.Headers) []respond.Field {
		return appendFields(style, e.Decide())
	}
	require.Empty(t, fields("none"))
	require.Equal(t, []respond.Field{
		{"ratelimit-policy", `"a/0";q=9;w=10, "a/daily";q=20;w=86400, "b\"";q=3`},
		{"ratelimit", `"a/0";r=7;t=9, "a/daily";r=18;t=86399, "b\"";r=1;t=1`},
	}, fields("ietf"))
	require.Equal(t, []respond.Field{
		{"x-ratelimit-limit", "3, 9;w=10, 20;w=86400, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("x-ratelimit"))
	require.Equal(t, []respond.Field{
		{"retry-after", "1"},
		{"x-envoy-ratelimited", "true"},
		{"ratelimit-policy", `"b\"";q=3`},
		{"ratelimit", `"b\"";r=0;t=1`},
		{"x-ratelimit-limit", "3, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("both"))
}

// What is held is missing in what is left, so the time says when it is back, if it is charged.
// A held slot comes back when its request ends, which nobody knows.
func TestFieldsCountWhatIsHeld(t *testing.T) {
	for algorithm, want := range map[string]string{
		"fixed_window": `"r";r=8;t=59`, "fixed_window_per_key": `"r";r=8;t=60`, "sliding_window_log": `"r";r=8;t=60`,
		"sliding_window_counter": `"r";r=8;t=119`, "token_bucket": `"r";r=8;t=12`,
	} {
		p := hosttest.New()
		p.Clock = 1e9
		e := compileJSON(t, p, `{"name":"r","algorithm":"`+algorithm+`","limits":["10/1m"],"cost":2,
			"settle":{"when":{"status":[401]}}}`)
		fields := appendFields("ietf", e.Decide())
		require.Equal(t, []respond.Field{{"ratelimit-policy", `"r";q=10;w=60`}, {"ratelimit", want}}, fields, algorithm)
		fields = appendFields("x-ratelimit", e.Decide())
		require.Equal(t, respond.Field{"x-ratelimit-remaining", "6"}, fields[1], algorithm)
		require.NotEqual(t, "0", fields[2].Value, algorithm)
	}
	e := compileJSON(t, hosttest.New(), `{"name":"r","algorithm":"concurrency","limits":[5]}`)
	fields := appendFields("ietf", e.Decide())
	require.Equal(t, []respond.Field{{"ratelimit-policy", `"r";q=5`}, {"ratelimit", `"r";r=4`}}, fields)
}
