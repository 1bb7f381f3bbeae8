package sim_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

func TestLocalReplyPassesTheResponseCallback(t *testing.T) {
	b := setUp(t)
	res := b.serve(0, "reply 429 slow_down over_the_limit -1;log", header("x-then", "info;response :status;header x-ask"),
		upstream(func() { panic("a denied request went on") }))
	require.Equal(t, &sim.Response{
		Local: true, Status: 429, Details: "over_the_limit", Body: []byte("slow down"), GRPCStatus: -1,
		Headers: [][2]string{{"content-length", "9"}, {"content-type", "text/plain"},
			{"x-then", "3 0"}, {"x-then", "429"}, {"x-then", "reply 429 slow_down over_the_limit -1;log"}},
	}, res, "the first reply counts, and the request headers can still be read")
}

func TestRequestGoesOn(t *testing.T) {
	b := setUp(t)
	var seen *sim.Request
	res := b.serve(0, "on;info;log;add x-new 1;remove x-gone", header("x-gone", "1"),
		header("x-then", "info;header x-ask;prop request|path;response server"), func(r *sim.Request) {
			r.Host, r.Path = "h.example", "/p?q"
			r.Method, r.HasBody = "POST", true
			r.Upstream = func(r *sim.Request) (*sim.Response, error) {
				seen = r
				return &sim.Response{Status: 404, Headers: [][2]string{{"server", "s"}}, Body: []byte("gone")}, nil
			}
		})
	require.Equal(t, []string{"h.example", "/p?q", "POST"}, []string{seen.Host, seen.Path, seen.Method})
	require.Subset(t, seen.Headers, [][2]string{{"x-did", "7 0"}, {"x-new", "1"}})
	require.NotContains(t, seen.Headers, [2]string{"x-gone", "1"})
	require.Equal(t, &sim.Response{
		Status: 404, Details: "via_upstream", Body: []byte("gone"), GRPCStatus: -1,
		Headers: [][2]string{{"server", "s"}, {"x-then", "2 0"},
			{"x-then", "!2"}, {"x-then", "!1"}, {"x-then", "s"}},
	}, res, "the request headers are out of reach once the request went on")
	require.Equal(t, []string{"0 log /p?q 404 \x94\x01\x00\x00\x00\x00\x00\x00"}, b.heard(),
		"in the log phase all can be read")
}

func TestUnusualAnswers(t *testing.T) {
	b := setUp(t)
	refused := func(r *sim.Request) {
		r.Upstream = func(*sim.Request) (*sim.Response, error) { return nil, errors.New("refused") }
	}
	grpc := header("content-type", "application/grpc")
	for _, c := range []struct {
		do, then           string
		change             func(*sim.Request)
		status, grpcStatus int
		local              bool
	}{
		{"on", "reply 500 no d -1", header("a", "b"), 500, -1, true}, // in place of a response
		{"on", "response :status", refused, 503, -1, false},
		{"reply 429 no d -1", "", header("content-type", "application/grpc+proto"), 200, 14, true},
		{"reply 429 no d -1", "", header("content-type", "application/grpcx"), 429, -1, true},
		{"on;pause;resume", "", grpc, 200, -1, false},
		{"on", "panic", header("a", "b"), 503, -1, true},
	} {
		res := b.serve(0, c.do, header("x-then", c.then), c.change)
		require.Equal(t, []any{c.status, c.grpcStatus, c.local}, []any{res.Status, res.GRPCStatus, res.Local}, "%+v", c)
	}
}

func TestHeaderCalls(t *testing.T) {
	b := setUp(t)
	once, twice := header("x-k", "1"), header("x-k", "2")
	require.Equal(t, []string{"1", "1", `"1,2"`, "localhost", "/", "GET", "http", "!1"},
		b.do(0, "header x-k;header X-K;prop request|headers|x-k;header :authority;header :path;"+
			"header :method;header :scheme;header no", once, twice))
	require.Equal(t, "5 1", b.do(0, "info")[0])
	const pseudo = `:authority\x00localhost\x00:path\x00/\x00:method\x00GET\x00:scheme\x00http\x00`
	for step, want := range map[string]string{
		"headers":              pseudo + `x-ask\x00headers\x00x-k\x001\x00x-k\x002\x00"`,
		"prop request|headers": pseudo + `x-ask\x00prop request|headers\x00x-k\x001,2\x00"`,
	} {
		line := b.do(0, step, once, twice)[0]
		require.Equal(t, want, line[len(line)-len(want):], step)
	}
}

func TestPropertiesAreAsInEnvoy(t *testing.T) {
	b := setUp(t, func(o *sim.Options) { o.Properties = map[string][]byte{"node.id": []byte("n1")} })
	b.at(5)
	request := func(r *sim.Request) {
		r.Host, r.Path = "h:80", "/p/a?x=1&y#f"
		r.Method = "PUT"
		r.ClientIP, r.ClientPort = "2001:db8::1", 7
		r.Headers = append(r.Headers, [2]string{"user-agent", "ua"}, [2]string{"referer", "re"},
			[2]string{"x-request-id", "id"}, [2]string{"content-length", "3"})
		r.Metadata = map[string]*structpb.Struct{"n": {Fields: map[string]*structpb.Value{"t": structpb.NewStringValue("x")}}}
		r.Properties = map[string][]byte{
			"xds.route_name": []byte("r"),
			"metadata\x00filter_metadata\x00a.b\x00c": []byte("m"),
			"request.protocol":                        []byte("HTTP/2"),
		}
	}
	for _, c := range [][2]string{
		{"request|path", `"/p/a?x=1&y#f"`}, {"request|url_path", `"/p/a"`}, {"request|query", `"x=1&y"`},
		{"request|host", `"h:80"`}, {"request|scheme", `"http"`}, {"request|method", `"PUT"`},
		{"request|useragent", `"ua"`}, {"request|referer", `"re"`}, {"request|id", `"id"`},
		{"request|size", `"\x03\x00\x00\x00\x00\x00\x00\x00"`}, {"request|time", `"\x05\x00\x00\x00\x00\x00\x00\x00"`},
		{"request|protocol", `"HTTP/2"`}, {"request|headers|User-Agent", `"ua"`}, {"request|headers|no", "!1"},
		{"request|no", "!1"}, {"request|path|x", "!1"}, {"no", "!1"},
		{"source|address", `"[2001:db8::1]:7"`}, {"source|port", `"\a\x00\x00\x00\x00\x00\x00\x00"`},
		{"plugin_name", `"plugin"`}, {"plugin_root_id", `"root"`}, {"plugin_vm_id", `"vm"`}, {"plugin_name|x", "!1"},
		{"node|id", `"n1"`}, {"node|no", "!1"}, {"xds|route_name", `"r"`}, {"metadata|filter_metadata|a.b|c", `"m"`},
		{"metadata|filter_metadata|a", "!12"}, {"metadata", `"\n\x0f\n\x01n\x12\n\n\b\n\x01t\x12\x03\x1a\x01x"`},
		{"request", "!3"}, {"response", "!3"},
	} {
		require.Equal(t, c[1], b.do(0, "prop "+c[0], request)[0], c[0])
	}
}

func TestPropertiesOfTheGuest(t *testing.T) {
	b := setUp(t)
	res := b.serve(0, "setprop a 1;setprop b|c 2;prop a;prop b|c;prop filter_state|wasm.a")
	require.Equal(t, "ok\nok\n\"1\"\n!1\n\"1\"", string(res.Body), "only a path of one part can be read back")
	require.Equal(t, map[string]string{"a": "1", "b.c": "2"}, res.State)
	require.Equal(t, []string{"!1"}, b.do(0, "prop a"), "it belongs to the request")

	x, err := b.Start(0, &sim.Request{Headers: [][2]string{{"x-ask", "on;setprop a 1"}, {"x-then", "setprop b|c 2"}}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1"}, x.State())
	_, err = x.Answer(&sim.Response{Status: 200}, false)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b.c": "2"}, x.State())
}

func TestFaultsFailHostCalls(t *testing.T) {
	b := setUp(t)
	with := func(f sim.Faults) func(*sim.Request) { return func(r *sim.Request) { r.Faults = &f } }
	require.Equal(t, []string{"ok", "!10"}, b.do(0, "set k v 0;get k", with(sim.Faults{Get: true})))
	require.Equal(t, []string{"v 1", "!10"}, b.do(0, "get k;set k w 0", with(sim.Faults{Set: true})))
	require.Equal(t, []string{"!8", "ok", "ok", "x 3"},
		b.do(0, "set k w 1;set k w 1;set k x 0;get k", with(sim.Faults{CAS: 1})),
		"a write without a number is no compare-and-swap")
	require.Equal(t, []string{"x 3"}, b.do(0, "get k"), "faults end with their request")
}

func TestWhatATestAsksFor(t *testing.T) {
	b := setUp(t)
	_, err := b.Serve(1, &sim.Request{})
	require.EqualError(t, err, "find worker 1: there are workers 0 to 0")
	_, err = b.Serve(sim.Main, &sim.Request{})
	require.Error(t, err)
	_, err = b.Ask(0, "no_such")
	require.EqualError(t, err, "ask worker 0: the filter exports no no_such")
	b.serve(0, "panic")
	_, err = b.Ask(0, "no_such")
	require.EqualError(t, err, "ask worker 0: no configuration runs")
}

// Calls and accesses are announced before they are made.
func TestCallsAreAnnounced(t *testing.T) {
	var b *bench
	var seen, calls []string
	b = setUp(t, func(o *sim.Options) {
		o.OnCall = func(vm int, call string) { calls = append(calls, fmt.Sprint(vm, " ", call)) }
		o.OnShared = func(vm int, a sim.Access) {
			seen = append(seen, fmt.Sprint(vm, " ", string(a.Key), " ", a.Write, " ", a.CAS))
			if !a.Write && len(seen) == 1 {
				b.Shared().Set("k", []byte("meanwhile"), 0)
			}
		}
	})
	calls = nil
	require.Equal(t, []string{"meanwhile 1", "ok"}, b.do(0, "get k;set k v 1"))
	require.Equal(t, []string{"0 k false 0", "0 k true 1"}, seen)
	require.Equal(t, []string{
		"0 proxy_get_header_map_value", "0 proxy_get_header_map_value", "0 proxy_get_shared_data", "0 proxy_set_shared_data",
		"0 proxy_send_local_response",
	}, calls)
}
