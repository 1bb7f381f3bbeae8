package explain

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

func compileJSON(t testing.TB, host engine.Host, rules string) *engine.Engine {
	t.Helper()
	return engine.New(hosttest.Policy(t, rules), host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

// described is the request that the proxy is at.
func described(p *hosttest.Proxy) *Request {
	first := func(name string) string {
		if v := p.Headers[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	d := &Request{
		Method: first(":method"), Host: first(":authority"), Path: first(":path"),
		ClientAddress: p.Client, Headers: map[string][]string{}, Attributes: p.Attributes,
	}
	for name, values := range p.Headers {
		if name[0] != ':' {
			d.Headers[name] = values
		}
	}
	return d
}

// explain explains the request, or where none is given the one that the proxy is at.
func explain(t *testing.T, e *engine.Engine, p *hosttest.Proxy, r ...*Request) (x result.Explanation) {
	t.Helper()
	text := Explain(nil, e, p, append(r, described(p))[0])
	require.NoError(t, json.Unmarshal(text, &x), "%s", text)
	return x
}

// unmatched are rules that do not decide, and why.
var unmatched = []struct {
	rule         string
	headers      []string
	outcome, why string
}{
	{
		rule:    `"match":{"methods":["GET","HEAD"],"paths":["/x"]}`,
		headers: []string{":method", "POST"},
		outcome: outcomeNoMatch,
		why:     "methods: POST is not one of GET, HEAD",
	},
	{
		rule:    `"match":{"hosts":["a.example","*.b.example"]}`,
		outcome: outcomeNoMatch,
		why:     "hosts: api.example.com is not one of a.example, *.b.example",
	},
	{
		rule:    `"match":{"paths":["/v1/*","=/a*","/login","~/u/[0-9]+"]}`,
		headers: []string{":path", "/v2/x?y=1"},
		outcome: outcomeNoMatch,
		why:     "paths: /v2/x is not one of /v1/*, =/a*, /login, ~/u/[0-9]+",
	},
	{
		rule:    `"match":{"paths":["/","/1","/2","/3","/4","/5","/6","/7","/8","/9","/a","/b"]}`,
		headers: []string{":path", "/x"},
		outcome: outcomeNoMatch,
		why:     "paths: /x is not one of /, /1, /2, /3, /4, /5, /6, /7, /8, /9 and 2 more",
	},
	{
		rule:    `"match":{"headers":{"x-a":"*","x-b":"acme-*"}}`,
		headers: []string{"x-a", "1", "x-b", "other"},
		outcome: outcomeNoMatch,
		why:     "headers: x-b is other, not acme-*",
	},
	{`"match":{"headers":{"x-a":"*-7"}}`, []string{"x-a", ""}, outcomeNoMatch, `headers: x-a is "", not *-7`},
	{`"match":{"headers":{"x-a":"*"}}`, nil, outcomeNoMatch, "headers: x-a is absent"},
	{
		rule:    `"match":{"headers":{"x-a":"!"}}`,
		headers: []string{"x-a", "1"},
		outcome: outcomeNoMatch,
		why:     "headers: x-a is present, and must be absent",
	},
	{
		rule:    `"match":{"headers":{"x-api-key":"k1"}}`,
		headers: []string{"x-api-key", "s3cret"},
		outcome: outcomeNoMatch,
		why:     "headers: x-api-key differs from k1",
	},
	{
		rule:    `"match":{"headers":{"authorization":"=!"}}`,
		headers: []string{"authorization", "Bearer s3cret"},
		outcome: outcomeNoMatch,
		why:     "headers: authorization differs from =!",
	},
	{
		rule:    `"key":["host",{"header":"X-User"}]`,
		outcome: result.LacksKey,
		why:     "missing_key: the request has no header x-user, and missing_key is skip",
	},
	{
		rule:    `"key":[{"path":{"segment":2}}]`,
		outcome: result.LacksKey,
		why:     "missing_key: the request has no path segment 2, and missing_key is skip",
	},
	{`"match":{"client_ips":["10.0.0.0/8"]}`, nil, outcomeNoMatch, "client_ips: 192.0.2.7 is not one of 10.0.0.0/8"},
	{`"exempt":[{"methods":["PUT"]},{"paths":["/"]}]`, nil, result.Exempted, "exempt[1] holds"},
	{
		rule:    `"key":["host"]}],"exempt":[{"methods":["PUT"]},{"paths":["/"]`,
		outcome: result.Exempted,
		why:     "the policy's exempt[1] holds",
	},
	{`"mode":"off"}],"exempt":[{"paths":["/"]`, nil, outcomeOff, "mode: the rule is off"},
	{
		rule:    `"key":[{"query":"user"}]`,
		outcome: result.LacksKey,
		why:     "missing_key: the request has no query user, and missing_key is skip",
	},
	{`"mode":"off"`, nil, outcomeOff, "mode: the rule is off"},
}

func TestExplainWhy(t *testing.T) {
	for _, c := range unmatched {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],`+c.rule+`}`)
		x := explain(t, e, p)
		require.True(t, *x.Allowed)
		require.Equal(t, c.outcome, x.Rules[0].Outcome)
		require.Equal(t, c.why, x.Rules[0].Why)
	}
}

func TestExplainMatched(t *testing.T) {
	p := hosttest.New()
	p.Clock = 1
	p.With("x-plan", "gold-1", "x-user", "alice", "authorization", "Bearer s3cret", "x-cost", "3")
	e := compileJSON(t, p, `
		{"name":"free","key":[{"header":"x-user"}],"limits":["5/1h"],"overrides":[{"key":["bob"],"limits":["1/1h"]},
			{"key":["al*"],"unlimited":true}]},
		{"name":"plan","key":[{"header":"x-plan"},{"header":"authorization"},{"header":"x-none"}],"missing_key":"share",
			"cost":{"header":"x-cost"},
			"limits":["4/1h","100/1d"],"overrides":[{"name":"gold","key":["gold-*","*","*"],"limits":["5/1h"]}]},
		{"name":"trial","mode":"shadow","limits":["0/1h"]}`)
	require.True(t, e.Decide().Allowed)
	text := string(Explain(nil, e, p, described(p)))
	require.NotContains(t, text, "s3cret")
	require.JSONEq(t, `{"allowed":false,"denied_by":"plan","retry_after_ns":3599999999999,"rules":[
		{"rule":"free","outcome":"matches","key":[{"part":"header x-user","value":"alice"}],"cost":1,
			"override":{"index":1,"key":["al*"]},
			"unlimited":true,"mode":"enforced","allowed":true,"windows":[]},
		{"rule":"plan","outcome":"matches","key":[{"part":"header x-plan","value":"gold-1"},
			{"part":"header authorization","hidden":true},{"part":"header x-none","missing":true}],
			"cost":3,"override":{"index":0,"name":"gold","key":["gold-*","*","*"]},"mode":"enforced","allowed":false,
				"reason":"limit","windows":[
				{"limit":5,"per_ns":3600000000000,"used":3,"remaining":2,"reset_ns":3599999999999},
				{"unlimited":true,"per_ns":86400000000000,"used":3,"reset_ns":86399999999999}]},
		{"rule":"trial","outcome":"matches","key":[],"cost":1,"mode":"shadow","allowed":true,
			"reason":"not_asked","windows":[
				{"limit":0,"per_ns":3600000000000,"used":0,"remaining":0,"reset_ns":3599999999999}]}]}`, text)
}

// Where keys are asked for, every rule that is not off says the request's key in it, as the
// operations on counters take it, and by its hash as top shows it.
func TestExplainKeys(t *testing.T) {
	p := hosttest.New()
	p.With("x-user", "alice", "authorization", "Bearer s3cret")
	e := compileJSON(t, p, `
		{"name":"elsewhere","match":{"paths":["/other"]},"key":[{"header":"x-user"},{"header":"x-none"}],
			"missing_key":"share","limits":["5/1h"]},
		{"name":"token","key":[{"first_of":[{"header":{"name":"authorization","scheme":"bearer"}},"client_ip"]}],
			"limits":["1/1h"]},
		{"name":"lacks","key":[{"header":"x-none"}],"missing_key":"deny","mode":"shadow","limits":["5/1h"]},
		{"name":"open","key":["client_ip"],"limits":["5/1h"]},
		{"name":"host","key":["host"],"limits":["5/1h"]},
		{"name":"all","limits":["5/1h"]},
		{"name":"none","mode":"off","limits":["5/1h"]},
		{"name":"posts","match":{"methods":["POST"]},"cost":{"request_bytes":{"per_unit":2,"min":7,"max":8}},
			"limits":["50/1h"]},
		{"name":"free","match":{"methods":["POST"]},"cost":[
			{"match":{"paths":["/"]},"cost":{"header":"x-cost","min":0}},{"cost":5}],"limits":["50/1h"]},
		{"name":"near","cost":[{"match":{"client_ips":["10.0.0.0/8"]},"cost":2},{"cost":9}],"limits":["50/1h"]}`)
	require.True(t, e.Decide().Allowed)
	require.False(t, e.Decide().Allowed)
	r := described(p)
	r.ClientAddress, r.Keys = "", true
	x := explain(t, e, p, r)
	for i, want := range []struct {
		key, noKey string
		common     bool
	}{
		{`[{"part":"header x-user","value":"alice"},{"part":"header x-none","missing":true}]`, "", false},
		{
			key: `[{"part":"header authorization (bearer) or client_ip","value":"header:authorization:bearer=s3cret",` +
				`"hidden":true}]`,
		},
		{
			`[{"part":"header x-none","missing":true}]`,
			"the request has no header x-none, and missing_key is deny", false,
		},
		{`null`, "the description does not give client_ip", false},
		{`[{"part":"host","value":"` + r.Host + `"}]`, "", true},
		{`[]`, "", true},
		{`null`, "", false},
	} {
		rule := x.Rules[i]
		key, err := json.Marshal(rule.Key)
		require.NoError(t, err)
		require.JSONEq(t, want.key, string(key), rule.Rule)
		require.Equal(t, want.noKey, rule.NoKey, rule.Rule)
		require.Equal(t, want.common, rule.Common, rule.Rule)
		require.Equal(t, key[0] == '[' && want.noKey == "", rule.Hash != "", rule.Rule)
	}
	require.EqualValues(t, 7, *x.Rules[7].Cost, "the least, of a rule for other requests")
	require.EqualValues(t, 1, *x.Rules[8].Cost, "requests that cost nothing are never denied")
	require.EqualValues(t, 2, *x.Rules[9].Cost, "the least, of an address that is not described")
	r.Method = "POST"
	require.EqualValues(t, 7, *explain(t, e, p, r).Rules[7].Cost, "the least, of a body whose length is not described")
	r.Headers["content-length"] = []string{"16"}
	require.EqualValues(t, 8, *explain(t, e, p, r).Rules[7].Cost)
	top, err := e.Operate(engine.Operation{Name: "top", Rule: "token"})
	require.NoError(t, err)
	require.Contains(t, string(top), `{"rule":"token","mode":"enforced",`)
	require.Contains(t, string(top), `"hash":"`+x.Rules[1].Hash+`"`)
}

// Two rules with one counter count a request twice, so its last unit lets
// neither through; windows show the usage before the request.
func TestExplainRulesOfOneCounter(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"a","counter":"c","limits":["3/1h"]},{"name":"b","counter":"c","limits":["3/1h"]}`)
	require.True(t, e.Decide().Allowed)
	x := explain(t, e, p)
	require.False(t, *x.Allowed)
	require.Equal(t, "b", x.DeniedBy)
	require.EqualValues(t, 2, x.Rules[0].Windows[0].Used)
	require.EqualValues(t, 2, x.Rules[1].Windows[0].Used)
}

func TestExplainWithoutCounters(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["3/1h"],"on_error":"deny"}`)
	require.True(t, *explain(t, e, p).Allowed)
	require.Empty(t, p.Store, "not even a table")
	p.Fail = "get"
	x := explain(t, e, p)
	require.False(t, *x.Allowed)
	require.Equal(t, "on_error", x.Rules[0].Reason)
}

// Explain says of a request what Decide then does, whatever policy, request and
// history are, and leaves no trace.
func TestExplainIsWhatDecideDoes(t *testing.T) {
	dice := rand.NewChaCha8([32]byte{5})
	outcomes := map[string]int{}
	for range 400 {
		data := make([]byte, 600)
		dice.Read(data)
		in := hosttest.Tape(data)
		rules := in.Rules(in.Next()%2 == 1)
		p := hosttest.New()
		p.Clock = 1_700_000_000_123_456_789
		e := compileJSON(t, p, rules)
		for len(in) > 0 {
			in.Request(p, true)
			for _, name := range []string{":path", ":authority"} { // a described request has no empty ones
				if v := p.Headers[name]; len(v) > 0 && v[0] == "" {
					delete(p.Headers, name)
				}
			}
			store, metrics := maps.Clone(p.Store), metricsOf(e)
			x := explain(t, e, p)
			require.Equal(t, store, p.Store, "%s", rules)
			require.Equal(t, metrics, metricsOf(e), "%s", rules)

			v := e.Decide()
			switch {
			case len(x.DependsOn) == 0:
				require.Equal(t, v.Allowed, *x.Allowed, "%s", rules)
			case x.DeniedBy != "": // whatever the description leaves open
				require.False(t, v.Allowed, "%s", rules)
			}
			if !v.Allowed && len(x.DependsOn) == 0 {
				require.Equal(t, v.DeniedBy().Name, x.DeniedBy, "%s", rules)
				require.Equal(t, v.RetryNs, *x.RetryNs, "%s", rules)
			}
			matched := v.Subjects
			for i := range x.Rules {
				r := &x.Rules[i]
				outcomes[r.Outcome]++
				require.NotEqual(t, unexplained, r.Why, "%s", rules)
				if r.Outcome == result.NotKnown && len(matched) > 0 && matched[0].Rule.Policy.Name == r.Rule {
					matched = matched[1:]
				}
				if r.Outcome != result.Matches {
					continue
				}
				require.Equal(t, matched[0].Rule.Policy.Name, r.Rule)
				require.Equal(t, !matched[0].Denies(), *r.Allowed, "%s", rules)
				require.Equal(t, matched[0].Reason(), r.Reason)
				require.Equal(t, matched[0].Cost, *r.Cost)
				require.Len(t, r.Key, len(matched[0].Key.Parts))
				matched = matched[1:]
			}
			require.Empty(t, matched, "a rule matched of which explain says that it does not: %s", rules)
		}
	}
	for _, outcome := range []string{result.Matches, result.NotKnown, outcomeNoMatch, result.LacksKey} {
		require.Greater(t, outcomes[outcome], 1000, outcome)
	}
}

func metricsOf(e *engine.Engine) map[string]uint64 {
	counts := map[string]uint64{}
	e.EachMetric(func(s engine.Series, count uint64) { counts[s.Rule+" "+s.Override+s.Metric] = count })
	return counts
}

// A condition without words would be called unexplained.
func TestEveryConditionHasWords(t *testing.T) {
	for field := range reflect.TypeFor[policy.Match]().Fields() {
		other := map[string]string{
			"Methods": `"methods":["X"]`, "Hosts": `"hosts":["x"]`, "Paths": `"paths":["/other"]`,
			"ClientIPs": `"client_ips":["10.0.0.0/8"]`, "Headers": `"headers":{"x-none":"*"}`}[field.Name]
		require.NotEmpty(t, other, "give failing words for match.%s, and this test an example", field.Name)
		p := hosttest.New()
		x := explain(t, compileJSON(t, p, `{"name":"r","limits":["1/1h"],"match":{`+other+`}}`), p)
		require.NotEqual(t, unexplained, x.Rules[0].Why)
	}
}

// What a described request holds is not taken for the next one's.
func TestExplainLeavesNothingBehind(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p,
		`{"name":"r","key":[{"header":"x-user"},{"query":"q"},{"cookie":"c"},{"property":["connection","id"]}],
			"missing_key":"share",
		"match":{"headers":{"x-plan":"gold"}},"limits":["10/1h"]}`)
	p.With("x-user", "bob", "x-plan", "gold", ":path", "/?q=2", "cookie", "c=2")
	p.Attributes = map[string]string{"connection.id": "2"}
	for range 3 {
		Explain(nil, e, p, &Request{
			Path:    "/?q=1",
			Headers: map[string][]string{"x-user": {"alice"}, "x-plan": {"silver"}, "cookie": {"c=1"}},
		})
		require.True(t, e.Decide().Matched())
		Explain(nil, e, p, &Request{
			Path:    "/?q=1",
			Headers: map[string][]string{"x-user": {"alice"}, "x-plan": {"gold"}, "cookie": {"c=1"}},
		})
		v := e.Decide()
		for i, want := range []string{"bob", "2", "2", "2"} {
			require.Equal(t, want, v.Subjects[0].Key.Parts[i].Text)
		}
	}
}

// What explain says of a request that is described.
func TestExplainSays(t *testing.T) {
	const cost, match = `"cost":{"header":"c","max":7}`, `"match":{"headers":{"h":"~y"}}`
	const bytes = `"cost":{"request_bytes":{"per_unit":2,"min":5,"max":80}}`
	for _, c := range []struct{ rule, description, want string }{
		{`"key":["route"]`, `"route":"main"`, `"outcome":"matches","key":[{"part":"route","value":"main"}]`},
		{cost, `"headers":{"c":"3"}`, `"cost":3,"mode"`},
		{bytes, `"method":"DELETE"`, `"cost":5,"body_assumed":"no body","mode"`},
		{bytes, `"method":"POST"`, `"cost":80,"body_assumed":"a body of unknown length","mode"`},
		{bytes, `"method":"POST","headers":{"content-length":"40"}`, `"cost":20,"mode"`},
		{cost, `"headers":{"c":["3 "," 3"]}`, `"cost":3,"mode"`},
		{cost, `"headers":{"c":"+3"}`, `"cost":7,"cost_unreadable":true,"mode"`},
		{match, `"headers":{"h":"` + strings.Repeat("y", automaton.MaxValueBytes) + `"}`, `"outcome":"no_match"`},
		{match, `"headers":{"h":"` + strings.Repeat("y", automaton.MaxValueBytes+1) + `"}`, `"too_long":true`},
	} {
		p := hosttest.New()
		r, err := ParseRequest(`{"path":"/",` + c.description + `}`)
		require.NoError(t, err)
		text := Explain(nil, compileJSON(t, p, `{"name":"r","limits":["9/1h"],`+c.rule+`}`), p, r)
		require.Contains(t, string(text), c.want, c.rule)
	}
}
