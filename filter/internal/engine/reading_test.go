package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	readFirst, readAfter = `"limits":[]`, `{"name":"second","limits":[],`
	twoHeaders           = `{"name":"r","limits":[],"match":{"headers":{"h":"a"}}},` +
		readAfter + `"match":{"headers":{"h":"b"}}}`
)

// many writes rules that differ by the number in their matches.
func many(n int, match string) string {
	var rules []string
	for i := range n {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","limits":[],"match":{%s}}`, i,
			strings.ReplaceAll(match, "#", strconv.Itoa(i))))
	}
	return strings.Join(rules, ",")
}

var mixed = many(20, `"paths":["/p#"]`) + `,{"name":"other","limits":[],"match":{"paths":["/other"],"hosts":["a"]}}`

// readCases are what a rule of each kind asks of the proxy, call by call.
var readCases = []struct {
	rules   string
	headers []string
	want    []string
}{
	{`{"name":"r",` + readFirst + `}`, nil, nil},
	{`{"name":"r","mode":"off","key":["host"],` + readFirst + `}`, nil, nil},
	{`{"name":"r","key":[{"header":"a"},{"header":"A"}],` + readFirst + `}`, nil, []string{"header a"}},
	{`{"name":"r","key":["client_ip",{"client_ip":{"v4_prefix":8}}],"match":{"client_ips":["192.0.2.7"]},` + readFirst +
		`}`, nil, []string{"client"}},
	{`{"name":"r","key":[{"query":"a"},{"query":"b"},"path",{"path":{"segment":1}}],"cost":{"query":"c"},` +
		`"missing_key":"share","match":{"paths":["*"]},` + readFirst + `}`, nil, []string{"header :path"}},
	{`{"name":"r","key":["host","method","route"],"match":{"methods":["GET"],"hosts":["*.example.com"]},` + readFirst +
		`}`, nil, []string{"header :method", "header :authority", "attribute xds.route_name"}},
	{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + readFirst + `}`, []string{"cookie", "a=1; b=2"},
		[]string{"joined cookie"}},
	{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + readFirst + `}`, []string{"cookie", "a=1,3; b=2"},
		[]string{"joined cookie", "header cookie"}},
	{`{"name":"r","key":[{"jwt":{"provider":"p","claim":"a"}},{"jwt":{"provider":"q","claim":["b","c"]}}],` +
		`"missing_key":"share",` + readFirst + `}`, nil, []string{"attribute metadata"}},
	{`{"name":"r","key":[{"property":["source","port"]},{"property":["source","port"]}],"missing_key":"share",` +
		readFirst + `}`, nil, []string{"attribute source.port"}},
	{`{"name":"r","key":[{"first_of":[{"header":"a"},{"header":"b"},"client_ip"]}],` + readFirst + `}`,
		[]string{"b", "1"}, []string{"header a", "header b"}},
	{`{"name":"r","key":[{"header":"a"}],"cost":{"header":"c"},` + readFirst + `}`, nil, []string{"header a"}},
	// Only a comma in a header costs a second call, and only one that is repeated a third.
	{twoHeaders, nil, []string{"joined h"}},
	{twoHeaders, []string{"h", " x "}, []string{"joined h"}},
	{twoHeaders, []string{"h", "x,y"}, []string{"joined h", "header h"}},
	{twoHeaders, []string{"h", "x, y"}, []string{"joined h", "header h"}},
	{twoHeaders, []string{"h", "x", "h", "y"}, []string{"joined h", "header h", "headers"}},
	{twoHeaders, []string{"h", "x ", "h", " y"}, []string{"joined h", "header h", "headers"}},
	// The cheapest predicate first, and the key only where all hold.
	{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"methods":["POST"],` +
		`"hosts":["a"],"paths":["/a"]},` + readFirst + `}`, nil, []string{"header :method"}},
	{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"hosts":["a"],` +
		`"paths":["/a"]},` + readFirst + `}`, nil, []string{"header :authority"}},
	{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"paths":["/a"]},` +
		readFirst + `}`, nil, []string{"header :path"}},
	{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"]},` + readFirst + `}`,
		nil, []string{"client"}},
	{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"}},` + readFirst + `}`, nil, []string{"joined h"}},
	// What an earlier rule has read is asked before what would have to be.
	{`{"name":"r","match":{"paths":["/a"]},` + readFirst + `},` +
		readAfter + `"match":{"methods":["GET"],"paths":["/b"]}}`,
		nil, []string{"header :path"}},
	{`{"name":"r","match":{"headers":{"h":"!"}},` + readFirst + `},` + readAfter +
		`"match":{"hosts":["api.example.com"],"headers":{"h":"*"}}}`, nil, []string{"joined h"}},
	// Exemptions are asked of what matches, before its key is read.
	{`{"name":"r","match":{"paths":["/a"]},"exempt":[{"methods":["GET"]}],"key":[{"header":"a"}],` + readFirst + `}`,
		nil, []string{"header :path"}},
	{`{"name":"r","exempt":[{"methods":["POST"]},{"hosts":["api.example.com"]},{"headers":{"h":"*"}}],` +
		`"key":[{"header":"a"}],` + readFirst + `}`, nil, []string{"header :method", "header :authority"}},
	{`{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"],"headers":{"h":"*"}}],"key":["client_ip"],` + readFirst + `}`,
		nil, []string{"client"}},
	// A limit from the request is read where its rule matches.
	{readAfter + `"match":{"paths":["/a"]}},{"name":"r","match":{"paths":["/r"]},"limits":[` + fromClaim + `]}`, nil,
		[]string{"header :path"}},
	// Below a few rules an index would only read more than the rules need.
	{many(7, `"methods":["POST"],"paths":["/p#"],"hosts":["h#"]`), []string{":path", "/p1"}, []string{"header :method"}},
	{many(20, `"paths":["/p#"],"hosts":["h#"]`), []string{":path", "/p1"},
		[]string{"header :authority"}}, // nothing is left
	{mixed, []string{":path", "/none"}, []string{"header :path"}},
	{mixed, []string{":path", "/p1"}, []string{"header :path"}},
	{mixed, []string{":path", "/other"}, []string{"header :path", "header :authority"}},
}

// Each value is asked for once, and none that an earlier answer has made needless.
func TestReadsOfEachRule(t *testing.T) {
	for _, c := range readCases {
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

// If the proxy does not return the values of a repeated header, the header counts
// against the client.
func TestValuesThatTheProxyDoesNotReturn(t *testing.T) {
	for rule, want := range map[string]bool{
		`"exempt":[{"headers":{"x-t":"good*"}}]`: false,
		`"match":{"headers":{"x-t":"evil*"}}`:    false,
	} {
		p := hosttest.New()
		p.Mute = true
		p.With("x-t", "good", "x-t", "evil")
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],`+rule+`}`)
		require.Equal(t, want, e.Decide().Allowed, rule)
	}
}

// A cost that an upstream may read otherwise than the filter is max.
func TestCostsThatCanBeReadOtherwise(t *testing.T) {
	for text, want := range map[string]uint32{
		"": 20, "25": 25, "500": 500, "0500": 500, "000000000000000000000500": 500, "9999": 500, "500, 500": 500, "20," +
			" 500": 500, "+500": 500, "500.0": 500, "5e2": 500, "-5": 500,
	} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r","limits":["9999/1h"],"cost":{"header":"c","default":20,"max":500}},
			{"name":"s","limits":["9999/1h"],"cost":{"query":"page_size","default":20,"max":500}}`)
		if text != "" {
			p.With("c", text, ":path", "/?page_size="+strings.NewReplacer("+", "%2B", ", ", "&page_size=").Replace(text))
		}
		v := e.Decide()
		require.Equal(t, []uint32{want, want}, []uint32{v.Subjects[0].Cost, v.Subjects[1].Cost}, text)
	}
	for query, want := range map[string]uint32{
		"page%5Fsize=25": 25, "page_size=": 500, "page_size": 500, "page_size=%2025": 500,
		"page_size=1&x=1;page_size=5": 500, "Page_Size=5": 500, "page_size[]=5": 500,
		"page_size%00=5": 500,
	} {
		p := hosttest.New()
		p.With(":path", "/?"+query)
		e := compileJSON(t, p, `{"name":"s","limits":["9999/1h"],"cost":{"query":"page_size","default":20,"max":500}}`)
		require.Equal(t, want, e.Decide().Subjects[0].Cost, query)
	}
}

// A path that some server may read with the segment of the key counts, though another one finds no such segment.
func TestASegmentThatSomeServerReadsIsAKey(t *testing.T) {
	for _, key := range []string{`{"path":{"segment":2}}`, `{"first_of":[{"path":{"segment":2}},"method"]}`} {
		p := hosttest.New()
		p.With(":path", "/users/42/..;/..;/", ":method", "GET")
		e := compileJSON(t, p, `{"name":"r","match":{"paths":["/users/*"]},"key":[`+key+`],"limits":["9/1h"]}`)
		v := e.Decide()
		require.Len(t, v.Subjects, 1, key)
		require.Equal(t, "42", v.Subjects[0].Key.Parts[0].Text, key)
	}
}

// A value that is too long for an expression counts against the client: it is
// taken to match, not to exempt, and to have no higher limit.
func TestTooLongForAnExpression(t *testing.T) {
	fits, long := strings.Repeat("x", automaton.MaxValueBytes), strings.Repeat("x", automaton.MaxValueBytes+1)
	const key = `"name":"r","key":[{"header":"h"}],"limits":["2/1h",{"requests":9,"per":"1d"}]`
	for _, c := range []struct {
		name, rule string
		headers    []string
		allowed    int // of five requests
		noted      bool
	}{
		{"match", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", fits}, 5, false},
		{"match", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", long}, 0, true},
		{"one of two", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", "x", "h", long}, 0, true},
		{"together", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", "x", "h", fits}, 0, true},
		{"together", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~a,b.*"}}`,
			[]string{"h", "a", "h", "b", "h", fits}, 0, true},
		{"together, without an expression", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"a,b*"}}`,
			[]string{"h", "a", "h", "b", "h", fits}, 0, false},
		{"path", `"name":"r","limits":["0/1h"],"match":{"paths":["~/y"]}`, []string{":path", "/" + fits}, 0, true},
		{"exempt", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"~x*"}}]`, []string{"h", fits}, 5, false},
		{"exempt", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"~x*"}}]`, []string{"h", long}, 0, true},
		{"exempt from all rules", `"name":"r","limits":["0/1h"]}],"exempt":[{"headers":{"h":"~x*"}`, []string{"h", fits},
			5, false},
		{"exempt from all rules", `"name":"r","limits":["0/1h"]}],"exempt":[{"headers":{"h":"~x*"}`, []string{"h", long},
			0, true},
		{"without an expression", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"x*"}}]`, []string{"h", long},
			5, false},
		{"unlimited", key + `,"overrides":[{"key":["~x*"],"unlimited":true}]`, []string{"h", fits}, 5, false},
		{"unlimited", key + `,"overrides":[{"key":["~x*"],"unlimited":true}]`, []string{"h", long}, 2, true},
		{"raised", key + `,"overrides":[{"key":["~x*"],"limits":["4/1h",{"requests":9,"per":"1d"}]}]`,
			[]string{"h", fits}, 4, false},
		{"raised", key + `,"overrides":[{"key":["~x*"],"limits":["4/1h",{"requests":9,"per":"1d"}]}]`,
			[]string{"h", long}, 2, true},
		{"one raised", key + `,"overrides":[{"key":["~x*"],"limits":["1/1h",{"requests":10,"per":"1d"}]}]`,
			[]string{"h", long}, 2, true},
		{"one left out", key + `,"overrides":[{"key":["~x*"],"limits":["1/1h"]}]`, []string{"h", long}, 2, true},
		{"lowered", key + `,"overrides":[{"key":["~y"],"limits":["1/1h",{"requests":9,"per":"1d"}]}]`,
			[]string{"h", long}, 1, true},
		{"the lowered after the raised", key + `,"overrides":[{"key":["~x*"],"unlimited":true},{"key":["~y"],` +
			`"limits":["1/1h",{"requests":9,"per":"1d"}]}]`, []string{"h", long}, 1, true},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, `{`+c.rule+`}`)
		allowed := 0
		for range 5 {
			if e.Decide().Allowed {
				allowed++
			}
		}
		require.Equal(t, c.allowed, allowed, c.name)
		noted := uint64(0)
		if c.noted {
			noted = 5
		}
		require.Equal(t, noted, e.rules.List[0].Metrics.TooLong, c.name)
		v := e.Decide()
		require.Equal(t, c.noted, len(v.Subjects) > 0 && v.Subjects[0].TooLong, c.name)
	}
}

// The request that an expression has not been run on does not taint the next.
func TestTooLongIsOfOneRuleAndRequest(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["9/1h"],"match":{"headers":{"h":"~x"}}},{"name":"s","limits":["9/1h"]}`)
	for _, value := range []string{strings.Repeat("x", automaton.MaxValueBytes+1), "y", "x"} { // "y" does not match r
		p.With("h", value)
		e.Decide()
	}
	require.EqualValues(t, 1, e.rules.List[0].Metrics.TooLong)
	require.Zero(t, e.rules.List[1].Metrics.TooLong)
	require.False(t, slices.ContainsFunc(e.verdict.Subjects, func(t *decide.Subject) bool { return t.TooLong }))
}

// fromClaim is a limit that requests say.
const fromClaim = `{"name":"n","requests":{"jwt":{"provider":"corp","claim":"rpm"},"default":3,"max":9},"per":"1m"}`

// claim moves on to a request of a user whose token says a limit, in JSON; "" says none.
func claim(t *testing.T, p *proxy, user, rpm string) {
	p.With("u", user)
	p.Attributes = map[string]string{}
	if rpm != "" {
		p.Attributes["metadata"] = hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"corp":{"rpm":`+rpm+`}}}`)
	}
}

// A request's own number is its limit: a whole number in digits, as a number or as text, at
// most max; else the default.
func TestARequestSaysItsLimit(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[`+fromClaim+`]}`)
	for i, tt := range []struct {
		rpm      string
		limit    int
		from, is string
	}{
		{"5", 5, `"jwt:corp:rpm"`, ""},
		{`"5"`, 5, `"jwt:corp:rpm"`, ""},
		{"9", 9, `"jwt:corp:rpm"`, ""},
		{"10", 9, `"jwt:corp:rpm"`, `,"limit_is":"max"`},
		{"4294967296", 9, `"jwt:corp:rpm"`, `,"limit_is":"max"`},
		{"0", 0, `"jwt:corp:rpm"`, ""},
		{"3", 3, `"jwt:corp:rpm"`, ""},
		{"", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"-1", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"4.5", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"1e21", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`"many"`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`""`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`"5 "`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"true", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"[5]", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
	} {
		claim(t, p, string(rune('a'+i)), tt.rpm)
		passed := 0
		for e.Decide().Allowed {
			passed++
		}
		require.Equal(t, tt.limit, passed, tt.rpm)
		require.Contains(t, report(e.Decide()), `"limit_from":`+tt.from+tt.is+`,"per_ns"`, tt.rpm)
	}
}

// An operation knows no request, so the default holds for it, and it says so. It counts in
// the key's record all the same.
func TestOperationsOnALimitFromTheRequest(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[`+fromClaim+`]}`)
	claim(t, p, "a", "9")
	require.True(t, e.Decide().Allowed)
	get := operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{"a"}})
	require.Contains(t, get, `{"value":1,"windows":[{"name":"n","limit":3,"limit_from":"jwt:corp:rpm",`+
		`"limit_is":"default","per_ns":60000000000,"used":1,"remaining":2,`)
	operate(t, e, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 8})
	require.True(t, e.Decide().Allowed)
	require.False(t, e.Decide().Allowed)

	for limit, left := range map[string]string{"10": `"limit":9,"limit_from":"jwt:corp:rpm","limit_is":"max"`,
		"9": `"limit":9,"limit_from":"jwt:corp:rpm"`} {
		get = operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{"a"}, Limits: []string{limit}})
		require.Contains(t, get, left+`,"per_ns":60000000000,"used":9,"remaining":0,`)
	}
	require.Contains(t, operate(t, e, Operation{Name: "hit", Rule: "r", Key: []string{"b"}, N: 8,
		Limits: []string{"8"}}), `{"allowed":true,`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1,
		Limits: []string{"8"}}), `{"allowed":false,`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1,
		Limits: []string{"9"}}), `{"allowed":true,`)
	for _, wrong := range [][]string{{"9", "9"}, {"x"}, {""}, {"-1"}, {"4294967296"}} {
		_, err := e.Operate(Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: wrong})
		require.Error(t, err, wrong)
	}
	_, err := e.Operate(Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: []string{"9", "9"}})
	require.EqualError(t, err, `requests say 1 of the limits of rule "r", not 2`)
}

// A header is taken only where all its values are one number.
func TestALimitFromATrustedHeader(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[
		{"requests":{"header":"X-Limit","trusted":true,"default":1,"max":9},"per":"1m"},
		{"requests":{"property":["request","headers","x-limit"],"trusted":true,"default":9,"max":9},"per":"1h"}]}`)
	for i, tt := range []struct {
		values []string
		passed int
	}{{[]string{"4"}, 4}, {[]string{"4", "4"}, 4}, {[]string{"4,4"}, 4}, {[]string{" 4"}, 4}, {[]string{"4", "5"},
		1}, {[]string{"+4"}, 1}, {nil, 1}, {[]string{"0"}, 0}} {
		p.With("u", string(rune('a'+i)))
		p.Headers["x-limit"] = tt.values
		if tt.values == nil {
			delete(p.Headers, "x-limit")
		}
		passed := 0
		for e.Decide().Allowed {
			passed++
		}
		require.Equal(t, tt.passed, passed, "%q", tt.values)
	}
}

var keyParts = []string{
	`{"header":"u"}`, `"host"`, `"method"`, `"client_ip"`, `{"client_ip":{"v4_prefix":24}}`, `{"query":"q"}`,
	`{"cookie":"u"}`, `{"path":{"segment":1}}`, `{"first_of":[{"header":"none"},{"header":"u"},{"query":"q"}]}`,
}

// What the filter asks the quota service for a request's key is what anybody finds who
// names that key by its parts, as sluice counters does: the key, its limits and whether
// they are enforced.
func TestTheFilterAsksForTheKeyThatCountersName(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 1))
	pick := func(from ...string) string { return from[dice.IntN(len(from))] }
	window := func() string {
		return pick(`"per":"1m"`, `"per":"1m","jitter":40`, `"per":"1m","algorithm":"token_bucket","burst":90`,
			`"per":"1h","algorithm":"sliding_window_counter"`)
	}
	asked, overridden := 0, 0
	for range 400 {
		var key, patterns []string
		for range 1 + dice.IntN(3) {
			key = append(key, pick(keyParts...))
			patterns = append(patterns, fmt.Sprintf("%q", pick("*", "*", "*a", "~.*[ab].*", "GET", "a*")))
		}
		limits := window()
		more := fmt.Sprintf(`,"overrides":[{"key":[%s],"limits":[{"requests":77,%s}]},{"key":[%s],"unlimited":true}]`,
			strings.Join(patterns, ","), limits, strings.Repeat(`"b*",`, len(patterns)-1)+`"b*"`)
		p := hosttest.Policy(t, fmt.Sprintf(`{"name":"r","counter":%q,"scope":"cluster","enforce_percent":%d,"key":[%s],`+
			`"limits":[{"requests":50,%s}]%s}`,
			pick("r", "other"), dice.IntN(101), strings.Join(key, ","), limits, pick("", more, more)))
		host := hosttest.New()
		host.Clock = 1_700_000_000_123_456_789
		host.With("u", pick("a", "b", "bb", "", "é"), "cookie", "u="+pick("a", "b"),
			":authority", pick("a", "Shop.example:443", "b."), ":path", pick("/a/b?q=a", "/b;x?q=%62", "/c"))
		e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
		v := e.Decide()
		wants := lease.BeginAsk(v)
		for _, a := range v.Subjects {
			var named policy.Subject
			var texts []string
			for i := range a.Key.Parts {
				texts = append(texts, a.Key.Parts[i].Whole())
			}
			require.NoError(t, p.Rules[0].ParseKey(&named.Key, texts))
			of := p.Finder(&p.Rules[0])
			of.Find(&named)
			require.Equal(t, []any{a.Override, a.Shadow, a.Unlimited, a.Windows},
				[]any{named.Override, named.Shadow, named.Unlimited, named.Windows})
			overridden += a.Override + 1
			if a.Unlimited {
				continue
			}
			require.Len(t, wants, 1)
			require.Equal(t, of.QuotaKey(&named), wants[0].Wire.Key)
			want := of.Definition(&named)
			want.ID = wants[0].Wire.Definition
			require.Equal(t, want, e.Cluster.Definitions()[want.ID])
			asked++
		}
	}
	t.Logf("%d keys of random policies asked for by the filter as counters name them", asked)
	require.Greater(t, asked, 100)
	require.Greater(t, overridden, 30)
}

// A key that lacks a part is named as top prints it, and so is one whose client sends
// what stands for that.
func TestAKeyIsNamedAsTopPrintsIt(t *testing.T) {
	p := hosttest.Policy(t, `{"name":"r","missing_key":"share","algorithm":"fixed_window_per_key","limits":["1/1h"],`+
		`"key":[{"header":"t"},{"first_of":[{"header":"u"},{"query":"q"}]}]}`)
	host := hosttest.New()
	e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	for _, headers := range [][]string{
		{"u", "zoe"}, {"t", "", "u", "zoe"}, {"t", "(missing)", "u", "zoe"}, {"t", "=(missing)", "u", "zoe"}, {"t", "=",
			"u", "zoe"}, {"t", "(missing)"}, {},
	} {
		host.With(headers...)
		require.True(t, e.Decide().Allowed)
		v := e.Decide()
		require.False(t, v.Allowed)
		var key []string
		for _, part := range v.Subjects[0].Key.Parts {
			text := part.Whole()
			if !part.Present {
				key = append(key, policy.PartText(nil))
			} else {
				key = append(key, policy.PartText(&text))
			}
		}
		reset, err := e.Operate(Operation{Name: "reset", Rule: "r", Key: key})
		require.NoError(t, err)
		require.Contains(t, string(reset), `{"value":1,`, key)
		require.True(t, e.Decide().Allowed, key)
	}
	e = New(hosttest.Policy(t, `{"name":"r","key":[{"header":"u"}],"limits":["1/1h"]}`), host,
		Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	_, err := e.Operate(Operation{Name: "reset", Rule: "r", Key: []string{"(missing)"}})
	require.EqualError(t, err, `part 0 of the key of rule "r" is (missing),`+
		` but only missing_key: share counts such a key: `+
		`write =(missing) if the text is meant`)
}
