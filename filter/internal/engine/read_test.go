package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
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
		{`"headers":{"x-tenant":"acme"}`, []string{"x-tenant", "acme", "x-tenant", "evil"}, false},
		{`"headers":{"x-tenant":"*"}`, []string{"x-tenant", ""}, true},
		{`"headers":{"x-tenant":"*"}`, nil, false},
		{`"headers":{"x-tenant":"!"}`, nil, true},
		{`"headers":{"x-tenant":"!"}`, []string{"x-tenant", "x"}, false},
		{`"methods":["GET"],"paths":["/other"]`, nil, false},
	} {
		p := newProxy()
		p.with(c.headers...)
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
		{`"host"`, "", []string{":authority", "API.Example.com:80"}, `"api.example.com"`},
		{`"method"`, "", nil, `"GET"`},
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
	} {
		p := newProxy()
		p.client = c.client
		p.with(c.headers...)
		e := compileJSON(t, p, `{"name":"r","limits":["9/1h"],"key":[`+c.key+`]}`)
		report := string(e.Decide().AppendReport(nil))
		if c.want == "" {
			require.Contains(t, report, `"rules":[]`, c.key)
		} else {
			require.Contains(t, report, `"key":[`+c.want+`]`, c.key)
		}
	}
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   uint32
	}{
		{nil, 3},
		{[]string{"7"}, 7},
		{[]string{"0"}, 2},
		{[]string{"-5"}, 2},
		{[]string{"1000"}, 100},
		{[]string{"99999999999999999999999999"}, 100},
		{[]string{"4294967296"}, 100},
		{[]string{"7", "8"}, 3},
		{[]string{"7.5"}, 3},
		{[]string{""}, 3},
		{[]string{"-"}, 3},
		{[]string{"+7"}, 3},
		{[]string{"0x10"}, 3},
		{[]string{" 7"}, 3},
	} {
		p := newProxy()
		if c.values != nil {
			p.headers["c"] = c.values
		}
		e := compileJSON(t, p, `{"name":"r","limits":["1000/1h"],"cost":{"header":"c","default":3,"min":2,"max":100}}`)
		require.Equal(t, [][]uint32{{c.want}}, used(e.Decide()), "%q", c.values)
	}
}

func TestFields(t *testing.T) {
	p := newProxy()
	p.now = 1_500_000_000
	rules := `{"name":"a","limits":["9/10s",{"requests":20,"per":"1d","name":"daily"}]},{"name":"b\"","limits":["3/500ms"]}`
	e := compileJSON(t, p, rules)
	fields := func(style policy.Headers) []Field {
		e.policy.Headers = style
		return e.AppendFields(nil, e.Decide())
	}
	require.Empty(t, fields("none"))
	require.Equal(t, []Field{
		{"ratelimit-policy", `"a/0";q=9;w=10, "a/daily";q=20;w=86400, "b\"";q=3`},
		{"ratelimit", `"a/0";r=7;t=9, "a/daily";r=18;t=86399, "b\"";r=1;t=1`},
	}, fields("ietf"))
	require.Equal(t, []Field{
		{"x-ratelimit-limit", "3, 9;w=10, 20;w=86400, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("x-ratelimit"))
	require.Equal(t, []Field{
		{"retry-after", "1"},
		{"x-envoy-ratelimited", "true"},
		{"ratelimit-policy", `"b\"";q=3`},
		{"ratelimit", `"b\"";r=0;t=1`},
		{"x-ratelimit-limit", "3, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("both"))
}

func TestHotPathAllocatesNothing(t *testing.T) {
	p := newProxy()
	p.with("u", "alice")
	quiet := &quietProxy{proxy: p, cells: map[string]*cell{}}
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

// quietProxy allocates nothing of its own once its buffers are large enough.
type quietProxy struct {
	*proxy
	cells   map[string]*cell
	buffers [4][]byte
	next    int
}

func (q *quietProxy) Header(name string) (string, bool) {
	if v := q.headers[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

func (q *quietProxy) Get(key []byte) ([]byte, uint32, state.Status) {
	c := q.cells[string(key)]
	if c == nil {
		return nil, 0, state.NotFound
	}
	q.next = (q.next + 1) % len(q.buffers)
	q.buffers[q.next] = append(q.buffers[q.next][:0], c.value...)
	return q.buffers[q.next], c.cas, state.OK
}

func (q *quietProxy) Set(key, value []byte, cas uint32) state.Status {
	c := q.cells[string(key)]
	if c == nil {
		c = &cell{}
		q.cells[string(key)] = c
	} else if cas != 0 && cas != c.cas {
		return state.Mismatch
	}
	q.cas++
	c.value, c.cas = append(c.value[:0], value...), q.cas
	return state.OK
}
