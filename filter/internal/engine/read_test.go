package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		match   string
		headers []string
		want    bool
	}{
		{`"methods":["POST","PUT"]`, []string{":method", "PUT"}, true},
		{`"methods":["POST"]`, nil, false},
		{`"hosts":["api.example.com"]`, []string{":authority", "API.example.com:8443"}, true},
		{`"hosts":["*.example.com"]`, []string{":authority", "api.example.com"}, true},
		{`"hosts":["*.example.com"]`, []string{":authority", "example.com"}, false},
		{`"hosts":["[::1]"]`, []string{":authority", "[::1]:80"}, true},
		{`"paths":["/v1/*"]`, []string{":path", "/v1/x?y=/v2"}, true},
		{`"paths":["=/login"]`, []string{":path", "/login?next=/"}, true},
		{`"paths":["/login"]`, []string{":path", "/login/"}, false},
		{`"paths":["~/u/[0-9]+"]`, []string{":path", "/u/17"}, true},
		{`"paths":["~/u/[0-9]+"]`, []string{":path", "/u/17/x"}, false},
		{`"paths":["~/a|/b"]`, []string{":path", "/bb"}, false},
		{`"headers":{"X-Tenant":"acme-*"}`, []string{"x-tenant", "acme-7"}, true},
		{`"headers":{"x-tenant":"*-7"}`, []string{"x-tenant", "acme-7"}, true},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "acme", "x-tenant", "evil"}, true},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "evil", "x-tenant", "acme"}, true},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "evil", "x-tenant", ""}, false},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "evil,acme"}, false},
		{`"headers":{"x-tenant":"evil,acme"}`, []string{"x-tenant", "evil,acme"}, true},
		{`"headers":{"x-tenant":"evil,acme"}`, []string{"x-tenant", "evil", "x-tenant", "acme"}, true},
		{`"headers":{"x-tenant":"~ac.e"}`, []string{"x-tenant", "evil,", "x-tenant", "acme"}, true},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", " \tacme \t"}, true},
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "evil", "x-tenant", " acme "}, true},
		{`"headers":{"x-tenant":"*-7"}`, []string{"x-tenant", "acme-7\t"}, true},
		{`"headers":{"x-tenant":"evil,acme"}`, []string{"x-tenant", " evil ", "x-tenant", "\tacme "}, true},
		{`"headers":{"x-tenant":"evil,acme"}`, []string{"x-tenant", "evil, acme"}, false},
		{`"headers":{"x-tenant":"=,acme"}`, []string{"x-tenant", " ", "x-tenant", "acme"}, true},
		{`"headers":{"x-tenant":"="}`, []string{"x-tenant", " "}, true},
		{`"headers":{"x-tenant":"!"}`, []string{"x-tenant", " "}, false},
		{`"headers":{"x-tenant":"=,"}`, []string{"x-tenant", "", "x-tenant", ""}, true},
		{`"headers":{"x-tenant":"="}`, []string{"x-tenant", "", "x-tenant", ""}, true},
		{`"headers":{"x-tenant":"acme","x-other":"b"}`, []string{"x-tenant", "x", "x-tenant", "acme", "x-other", "a", "x-other", "b"}, true},
		{`"methods":["GET"]`, []string{":method", "gEt"}, true},
		{`"methods":["purge"]`, []string{":method", "PURGE"}, true},
		{`"hosts":["api.example.com"]`, []string{":authority", "user:pw@api.example.com:80"}, true},
		{`"hosts":["api.example.com"]`, []string{":authority", "api.example.com@evil"}, false},
		{`"headers":{"x-tenant":"*"}`, []string{"x-tenant", ""}, true},
		{`"headers":{"x-tenant":"*"}`, nil, false},
		{`"headers":{"x-tenant":"!"}`, nil, true},
		{`"headers":{"x-tenant":"!"}`, []string{"x-tenant", "x"}, false},
		{`"methods":["GET"],"paths":["/other"]`, nil, false},
		{`"hosts":["api.example.com."]`, []string{":authority", "API.example.com.:80"}, true},
		{`"hosts":["[2001:DB8:0::1]"]`, []string{":authority", "[2001:0db8::1]:80"}, true},
		{`"hosts":["[2001:db8::1]"]`, []string{":authority", "[2001:db8::1"}, false},
		{`"hosts":["*.example.com"]`, []string{":authority", "a.b.EXAMPLE.com."}, true},
		{`"paths":["/v1/users:batch"]`, []string{":path", "/v1/users%3abatch"}, true},
		{`"paths":["/caf%c3%a9/*"]`, []string{":path", "/caf%C3%A9/x"}, true},
		{`"paths":["/100%"]`, []string{":path", "/100%25"}, true},
		{`"paths":["/a"]`, []string{":path", "/%2561"}, false},
		{`"paths":["/a"]`, []string{":path", "/a%3Fb"}, false},
		{`"paths":["~/[ab]"]`, []string{":path", "/%61"}, true},
		{`"client_ips":["192.0.2.0/24"]`, nil, true},
		{`"client_ips":["10.0.0.0/8","192.0.2.7"]`, nil, true},
		{`"client_ips":["10.0.0.0/8","192.0.2.8","::/0"]`, nil, false},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],"match":{`+c.match+`}}`)
		require.Equal(t, c.want, !e.Decide().Allowed, "%s %v", c.match, c.headers)
	}
}

func TestKey(t *testing.T) {
	for _, c := range []struct {
		key, client string
		headers     []string
		want        string
	}{
		{`{"header":"X-User"}`, "", []string{"x-user", "alice", "x-user", "bob"}, `"alice"`},
		{`{"header":"x-user"}`, "", []string{"x-user", "\t alice \t"}, `"alice"`},
		{`{"header":"x-user"}`, "", []string{"x-user", " a b "}, `"a b"`},
		{`{"header":"x-user"}`, "", []string{"x-user", " "}, `""`},
		{`{"header":"x-user"},"method"`, "", []string{"x-user", " alice"}, `"alice","GET"`},
		{`"host"`, "", []string{":authority", "API.Example.com:80"}, `"api.example.com"`},
		{`"method"`, "", nil, `"GET"`},
		{`"method"`, "", []string{":method", "gEt"}, `"GET"`},
		{`{"path":"full"}`, "", []string{":path", "/a/b?c"}, `"/a/b"`},
		{`{"path":{"segment":2}}`, "", []string{":path", "/a/b?c"}, `"b"`},
		{`{"path":{"segment":3}}`, "", []string{":path", "/a/b?c"}, ""},
		{`{"path":{"segment":1}}`, "", []string{":path", "//b"}, ""},
		{`{"client_ip":{}}`, "192.0.2.7:80", nil, `"192.0.2.7"`},
		{`{"client_ip":{"v4_prefix":24}}`, "192.0.2.7:80", nil, `"192.0.2.0/24"`},
		{`{"client_ip":{}}`, "[2001:db8::7:8]:80", nil, `"2001:db8::/64"`},
		{`{"client_ip":{"v6_prefix":128}}`, "[2001:DB8::7]:80", nil, `"2001:db8::7"`},
		{`{"client_ip":{}}`, "[::ffff:192.0.2.7]:80", nil, `"192.0.2.7"`},
		{`{"client_ip":{}}`, "/run/app.sock", nil, ""},
		{`{"header":"a"},{"header":"b"}`, "", []string{"a", "1", "b", ""}, `"1",""`},
		{`"host"`, "", []string{":authority", "[2001:DB8::0:1]:80"}, `"[2001:db8::1]"`},
		{`{"path":{"segment":1}}`, "", []string{":path", "/a%2fb/c%20"}, `"a"`},
		{`{"path":{"segment":1}}`, "", []string{":path", "/caf%c3%a9"}, `"café"`},
		{`{"query":"q"}`, "", []string{":path", "/?x=1&q=a+b%26&q=2#q=3"}, `"a b&"`},
		{`{"query":"q"}`, "", []string{":path", "/?q"}, `""`},
		{`{"query":"q"}`, "", []string{":path", "/q=1"}, ""},
		{`{"query":"q"}`, "", []string{":path", "/#?q=1"}, ""},
		{`{"cookie":"c"}`, "", []string{"cookie", `b=1; c="x"`}, `"x"`},
		{`{"cookie":"c"}`, "", []string{"cookie", "a=1,2", "cookie", "b=2", "cookie", "d=4; c=3"}, `"3"`},
		{`{"cookie":"c"}`, "", []string{"cookie", "c=1,2"}, `"1,2"`},
		{`{"cookie":"c"}`, "", []string{"cookie", "a=1", "cookie", "c=1,2"}, `"1,2"`},
		{`{"cookie":"c"}`, "", []string{"cookie", " c = 1\t"}, `"1"`},
		{`{"cookie":"c"}`, "", []string{"cookie", "  ", "cookie", " a=1 ", "cookie", "\tc=1,2 "}, `"1,2"`},
		{`{"cookie":"c"}`, "", []string{"cookie", "a=1"}, ""},
		{`"route"`, "", nil, `"main"`},
		{`{"property":["source","port"]}`, "", nil, `"80"`},
		{`{"property":["connection","mtls"]}`, "", nil, `"true"`},
		{`{"property":["connection","requested_server_name"]}`, "", nil, ""},
		{`{"property":["request","query"]}`, "", nil, `""`},
		{`{"property":["request","size"]}`, "", nil, `"text"`},
		{`{"property":["request","useragent"]}`, "", nil, `"ua"`},
		{`{"property":["request","headers","X-User"]}`, "", []string{"x-user", " alice\t"}, `"alice"`},
		{`{"property":["request","headers","x-user"]}`, "", []string{"x-user", "alice ", "x-user", " bob"}, `"alice,bob"`},
		{`{"property":["request","headers","x-user"]}`, "", []string{"x-user", "alice , bob"}, `"alice , bob"`},
		{`{"property":["request","headers","x-user"]}`, "", []string{"x-user", " "}, `""`},
		{`{"property":["request","headers","x-user"]}`, "", nil, ""},
		{`{"property":["unknown"]}`, "", nil, ""},
		{`{"jwt":{"provider":"p","claim":"sub"}}`, "", nil, `"alice123"`},
		{`{"jwt":{"provider":"p","claim":["org","id"]}}`, "", nil, `"42"`},
		{`{"jwt":{"provider":"p","claim":"org"}}`, "", nil, ""},
		{`{"jwt":{"provider":"q","claim":"sub"}}`, "", nil, ""},
		{`{"property":["metadata","filter_metadata","envoy.filters.http.jwt_authn","p","sub"]}`, "", nil, `"alice123"`},
		{`{"property":["xds","route_metadata","filter_metadata","ns","k"]}`, "", nil, `"v"`},
		{`{"first_of":[{"header":"a"},{"query":"q"},"host"]}`, "", []string{"a", ""}, `"header:a="`},
		{`{"first_of":[{"header":"a"},{"query":"q"},"host"]}`, "", []string{"a", " 1\t"}, `"header:a=1"`},
		{`{"first_of":[{"header":"a"},{"query":"q"},"host"]}`, "", []string{":path", "/?q=1"}, `"query:q=1"`},
		{`{"first_of":[{"header":"a"},{"query":"q"},"host"]}`, "", nil, `"host=api.example.com"`},
		{`{"first_of":[{"header":"a"},{"query":"q"}]}`, "", nil, ""},
	} {
		p := hosttest.New()
		p.Client = c.client
		p.Attributes = map[string]string{
			"xds.route_name": "main", "source.port": "\x50\x00\x00\x00\x00\x00\x00\x00", "connection.mtls": "\x01",
			"connection.requested_server_name": "", "request.query": "", "request.size": "text", "request.useragent": " ua ",
			"metadata":           hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"p":{"sub":"alice123","org":{"id":42}}}}`),
			"xds.route_metadata": hosttest.Metadata(t, `{"ns":{"k":"v"}}`),
		}
		p.With(c.headers...)
		e := compileJSON(t, p, `{"name":"r","limits":["9/1h"],"key":[`+c.key+`]}`)
		report := report(e.Decide())
		if c.want == "" {
			require.Contains(t, report, `"rules":[]`, c.key)
		} else {
			require.Contains(t, report, `"key":[`+c.want+`]`, c.key)
		}
	}
}

// A client cannot lower its cost by a spelling that an upstream reads otherwise: what is
// no plain decimal number, or not one number, costs max.
func TestCost(t *testing.T) {
	for _, c := range []struct {
		values     []string
		want       uint32
		unreadable bool
	}{
		{nil, 3, false},
		{[]string{"7"}, 7, false},
		{[]string{"0"}, 2, false},
		{[]string{"0070"}, 70, false},
		{[]string{"1000"}, 100, false},
		{[]string{"99999999999999999999999999"}, 100, false},
		{[]string{"4294967296"}, 100, false},
		{[]string{"18446744073709551617"}, 100, false},
		{[]string{" \t7\t "}, 7, false},
		{[]string{"7", "7"}, 7, false},
		{[]string{"7 ", " 7", "7"}, 7, false},
		{[]string{"7, 7"}, 7, false},
		{[]string{"7", "8"}, 100, true},
		{[]string{"7, 8"}, 100, true},
		{[]string{"7", "07"}, 100, true},
		{[]string{"7", ""}, 100, true},
		{[]string{"7,"}, 100, true},
		{[]string{"x", "x"}, 100, true},
		{[]string{"-5"}, 100, true},
		{[]string{"-"}, 100, true},
		{[]string{"+7"}, 100, true},
		{[]string{"7.5"}, 100, true},
		{[]string{"7.0"}, 100, true},
		{[]string{"7e0"}, 100, true},
		{[]string{"0x10"}, 100, true},
		{[]string{"7 0"}, 100, true},
		{[]string{"7;q=1"}, 100, true},
		{[]string{""}, 100, true},
		{[]string{" "}, 100, true},
		{[]string{"\v7"}, 100, true},
	} {
		p := hosttest.New()
		if c.values != nil {
			p.Headers["c"] = c.values
		}
		requireCost(t, p, `{"header":"c","default":3,"min":2,"max":100}`, c.want, c.unreadable)
	}
}

// requireCost decides the request that the proxy is at under a rule of this cost.
func requireCost(t *testing.T, p *hosttest.Proxy, cost string, want uint32, unreadable bool) {
	t.Helper()
	e := compileJSON(t, p, `{"name":"r","limits":["1000/1h"],"cost":`+cost+`}`)
	v := e.Decide()
	require.Equal(t, [][]uint32{{want}}, used(v), "%s %q", cost, p.Headers)
	require.Equal(t, unreadable, v.Subjects[0].CostUnreadable, "%s %q", cost, p.Headers)
	require.Equal(t, unreadable, e.rules[0].Metrics.CostUnreadable == 1, "%s %q", cost, p.Headers)
}

func TestCostByQuery(t *testing.T) {
	const most, doubt = 100, true
	for _, c := range []struct {
		name, query string
		want        uint32
		unreadable  bool
	}{
		{"c", "", 3, false},
		{"c", "?c=7", 7, false},
		{"c", "?c=0", 2, false},
		{"c", "?c=007", 7, false},
		{"c", "?c=1000", most, false},
		{"c", "?c=99999999999999999999999999", most, false},
		{"c", "?c=4294967296", most, false},
		{"c", "?c=%37", 7, false},
		{"c", "?%63=7", 7, false},
		{"c", "?c=7&c=7", 7, false},
		{"c", "?c=7&x=1&%63=%37", 7, false},
		{"c", "?c=7&x=a;b", 7, false},
		{"c", "?x=c=9", 3, false},
		{"c", "?cc=9&xc=9&c.x=9", 3, false},
		{"c", "?c=7#&c=8", 7, false},
		{"c", "?c=7&c=8", most, doubt},
		{"c", "?c=7&c=07", most, doubt},
		{"c", "?c=7&c", most, doubt},
		{"c", "?c=%2B7", most, doubt},
		{"c", "?c=+7", most, doubt},
		{"c", "?c=%207", most, doubt},
		{"c", "?c=7%20", most, doubt},
		{"c", "?c=7.0", most, doubt},
		{"c", "?c=7e0", most, doubt},
		{"c", "?c=0x10", most, doubt},
		{"c", "?c=1_0", most, doubt},
		{"c", "?c=-5", most, doubt},
		{"c", "?c=-", most, doubt},
		{"c", "?c=", most, doubt},
		{"c", "?c", most, doubt},
		{"c", "?c=%00", most, doubt},
		{"c", "?c=٣", most, doubt},
		{"c", "?c=７", most, doubt}, // a full-width seven
		{"c", "?c=7,7", most, doubt},
		// Some upstreams take these for the parameter, and others do not.
		{"c", "?C=9", most, doubt},
		{"c", "?c=7&C=9", most, doubt},
		{"c", "?c[]=9", most, doubt},
		{"c", "?c%5B0%5D=9", most, doubt},
		{"c", "?x=1;c=9", most, doubt},
		{"c", "?c=7;x=1", most, doubt},
		{"c", "?x;y=1;c", most, doubt},
		{"c", "?c;x=1", most, doubt},
		{"c", "?x=1;%43=9", most, doubt},
		{"c", "?+c=9", most, doubt},
		{"page_size", "?page.size=9", most, doubt},
		{"page_size", "?page+size=9", most, doubt},
		{"page_size", "?page[size=9", most, doubt},
		{"page_size", "?page%5FSize=9", most, doubt},
		{"page_size", "?page%5Fsize=9", 9, false},
		{"page_size", "?page[size]=9&page-size=9&pagesize=9&page_sizes=9", 3, false},
		{"page[size]", "?page[size]=9&page[number]=2", 9, false},
		{"page[size]", "?page[size][]=9", most, doubt},
	} {
		p := hosttest.New()
		p.With(":path", "/"+c.query)
		requireCost(t, p, `{"query":"`+c.name+`","default":3,"min":2,"max":100}`, c.want, c.unreadable)
	}
	p := hosttest.New()
	p.With(":path", "/?c=0")
	requireCost(t, p, `{"query":"c","min":0,"max":9}`, 0, false)
}

// What a rule of each kind asks of the proxy, call by call: each value once,
// and none that an earlier answer has made needless.
func TestReadsOfEachRule(t *testing.T) {
	const first, after = `"limits":[]`, `{"name":"second","limits":[],`
	for _, c := range []struct {
		rules   string
		headers []string
		want    []string
	}{
		{`{"name":"r",` + first + `}`, nil, nil},
		{`{"name":"r","mode":"off","key":["host"],` + first + `}`, nil, nil},
		{`{"name":"r","key":[{"header":"a"},{"header":"A"}],` + first + `}`, nil, []string{"header a"}},
		{`{"name":"r","key":["client_ip",{"client_ip":{"v4_prefix":8}}],"match":{"client_ips":["192.0.2.7"]},` + first + `}`, nil, []string{"client"}},
		{`{"name":"r","key":[{"query":"a"},{"query":"b"},"path",{"path":{"segment":1}}],"cost":{"query":"c"},"missing_key":"share","match":{"paths":["*"]},` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","key":["host","method","route"],"match":{"methods":["GET"],"hosts":["*.example.com"]},` + first + `}`, nil, []string{"header :method", "header :authority", "attribute xds.route_name"}},
		{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + first + `}`, []string{"cookie", "a=1; b=2"}, []string{"joined cookie"}},
		{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + first + `}`, []string{"cookie", "a=1,3; b=2"}, []string{"joined cookie", "header cookie"}},
		{`{"name":"r","key":[{"jwt":{"provider":"p","claim":"a"}},{"jwt":{"provider":"q","claim":["b","c"]}}],"missing_key":"share",` + first + `}`, nil, []string{"attribute metadata"}},
		{`{"name":"r","key":[{"property":["source","port"]},{"property":["source","port"]}],"missing_key":"share",` + first + `}`, nil, []string{"attribute source.port"}},
		{`{"name":"r","key":[{"first_of":[{"header":"a"},{"header":"b"},"client_ip"]}],` + first + `}`, []string{"b", "1"}, []string{"header a", "header b"}},
		{`{"name":"r","key":[{"header":"a"}],"cost":{"header":"c"},` + first + `}`, nil, []string{"header a"}},
		// The cheapest predicate first, and the key only where all hold.
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"methods":["POST"],"hosts":["a"],"paths":["/a"]},` + first + `}`, nil, []string{"header :method"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"hosts":["a"],"paths":["/a"]},` + first + `}`, nil, []string{"header :authority"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"paths":["/a"]},` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"]},` + first + `}`, nil, []string{"client"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"}},` + first + `}`, nil, []string{"joined h"}},
		// What an earlier rule has read is asked before what would have to be.
		{`{"name":"r","match":{"paths":["/a"]},` + first + `},` + after + `"match":{"methods":["GET"],"paths":["/b"]}}`, nil, []string{"header :path"}},
		{`{"name":"r","match":{"headers":{"h":"!"}},` + first + `},` + after + `"match":{"hosts":["api.example.com"],"headers":{"h":"*"}}}`, nil, []string{"joined h"}},
		// Exemptions are asked of what matches, before its key is read.
		{`{"name":"r","match":{"paths":["/a"]},"exempt":[{"methods":["GET"]}],"key":[{"header":"a"}],` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","exempt":[{"methods":["POST"]},{"hosts":["api.example.com"]},{"headers":{"h":"*"}}],"key":[{"header":"a"}],` + first + `}`, nil, []string{"header :method", "header :authority"}},
		{`{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"],"headers":{"h":"*"}}],"key":["client_ip"],` + first + `}`, nil, []string{"client"}},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, c.rules)
		for range 2 { // nothing is kept from one request to the next
			p.Calls = nil
			e.Decide()
			require.Equal(t, c.want, p.Calls, c.rules)
		}
	}
}

// Every form of exemption, and which of several rules it is for.
func TestExempt(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],"match":{"paths":["/v1/*"]},"exempt":[
		{"paths":["/v1/health"]},{"methods":["OPTIONS","HEAD"]},{"hosts":["internal.example"],"client_ips":["10.0.0.0/8"]},{"headers":{"x-probe":"!","x-internal":"~[0-9]+"}}]}`)
	for _, c := range []struct {
		want    bool
		client  string
		headers []string
	}{
		{true, "192.0.2.7:1", []string{":path", "/v2"}},
		{false, "192.0.2.7:1", []string{":path", "/v1/x"}},
		{true, "192.0.2.7:1", []string{":path", "/v1/health?x"}},
		{true, "192.0.2.7:1", []string{":path", "/v1/x", ":method", "HEAD"}},
		{false, "192.0.2.7:1", []string{":path", "/v1/x", ":authority", "internal.example"}},
		{true, "[::ffff:10.1.2.3]:1", []string{":path", "/v1/x", ":authority", "internal.example"}},
		{false, "/run/pipe", []string{":path", "/v1/x", ":authority", "internal.example"}},
		{true, "192.0.2.7:1", []string{":path", "/v1/x", "x-internal", "7"}},
		{true, "192.0.2.7:1", []string{":path", "/v1/x", "x-internal", "7", "x-internal", "8"}},
		{false, "192.0.2.7:1", []string{":path", "/v1/x", "x-internal", "7", "x-internal", "x"}},
		{false, "192.0.2.7:1", []string{":path", "/v1/x", "x-internal", "7", "x-probe", ""}},
	} {
		p.With(c.headers...)
		p.Client = c.client
		require.Equal(t, c.want, e.Decide().Allowed, "%s %v", c.client, c.headers)
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	p := hosttest.New()
	p.With("u", "alice")
	quiet := &hosttest.Steady{Proxy: p}
	e := compileJSON(t, quiet, `
		{"name":"user","key":[{"header":"u"}],"limits":["1000000/1h","2000000/24h"],"match":{"paths":["/*"],"hosts":["*.example.com"]}},
		{"name":"all","limits":["50/1h"]}`)
	for range 60 { // 50 allowed, then denied
		e.Decide()
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Decide() }), "denied")
	e = compileJSON(t, quiet, `{"name":"user2","key":[{"header":"u"}],"limits":["1000000/1h"]}`)
	for range 10 {
		e.Decide()
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Decide() }), "allowed")
}
