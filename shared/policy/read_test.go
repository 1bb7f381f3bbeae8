package policy_test

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func parse(t *testing.T, text string) *policy.Node {
	t.Helper()
	n, err := policy.ParseJSON([]byte(text))
	require.NoError(t, err)
	return n
}

func messages(problems []policy.Problem) []string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].Error())
	}
	return list
}

var update = flag.Bool("update", false, "rewrite the golden policies in testdata")

// See ruleState.
func TestARulesFieldsAreReadInOrder(t *testing.T) {
	at := map[string]int{}
	for _, object := range policy.Schema() {
		for i, f := range object.Fields {
			if object.Name == "rule" {
				at[f.Name] = i + 1
			}
		}
	}
	for _, c := range [][2]string{
		{"algorithm", "limits"}, {"key", "overrides"}, {"limits", "overrides"}, {"response", "missing_key"},
	} {
		require.NotZero(t, at[c[0]], c[0])
		require.Less(t, at[c[0]], at[c[1]], "%s before %s", c[0], c[1])
	}
}

// TestGolden reads every notation of each field, with its defaults, and compares what it means:
// all fields that are not zero, and what counters are found by, which stays.
func TestGolden(t *testing.T) {
	for _, name := range []string{"full", "keys", "answers"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		require.NoError(t, err)
		p, problems := policy.Read(parse(t, string(data)))
		require.Empty(t, messages(problems))
		wellFormed(t, p)
		policyFields := notZero(reflect.ValueOf(p)).(map[string]any)
		rules := policyFields["Rules"].([]any)
		delete(policyFields, "Rules")
		got, err := json.Marshal(policyFields)
		require.NoError(t, err)
		for i, rule := range rules {
			line, err := json.Marshal(rule)
			require.NoError(t, err)
			got = fmt.Appendf(got, "\n\n%s\n%s", p.Rules[i].KeyDefinition(), line)
		}
		if *update {
			require.NoError(t, os.WriteFile("testdata/"+name+".golden", got, 0o644))
		}
		want, err := os.ReadFile("testdata/" + name + ".golden")
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// notZero is a value as lists and maps, without the fields that are zero.
func notZero(v reflect.Value) any {
	switch text, ok := v.Interface().(encoding.TextMarshaler); {
	case ok:
		b, _ := text.MarshalText()
		return string(b)
	case v.Type() == reflect.TypeFor[*automaton.Automaton]():
		return "compiled"
	}
	switch v.Kind() {
	case reflect.Pointer:
		return notZero(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				fields[v.Type().Field(i).Name] = notZero(f)
			}
		}
		return fields
	case reflect.Slice:
		items := []any{}
		for i := range v.Len() {
			items = append(items, notZero(v.Index(i)))
		}
		return items
	default:
		return v.Interface()
	}
}

// rule is a policy of one rule with these fields beside its name and limits.
func rule(fields string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[]` + fields + `}]}`
}

func limits(items string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[` + items + `]}]}`
}

func TestReadPushed(t *testing.T) {
	p, errs := policy.ReadPushed(parse(t, `{"version":1,"revision":"42","rules":[]}`))
	require.Empty(t, messages(errs))
	require.Equal(t, "42", p.Revision)
	p, errs = policy.ReadPushed(parse(t, `{"version":1,"rules":[]}`))
	require.Empty(t, messages(errs))
	require.Empty(t, p.Revision)
	_, errs = policy.ReadPushed(parse(t, `{"version":1,"revision":"`+strings.Repeat("9", 65)+`"}`))
	require.Equal(t, []string{"revision: too_long"}, messages(errs))
}

func TestPatternRegexpMatchesInFull(t *testing.T) {
	p, errs := policy.Read(parse(t, rule(`,"match":{"headers":{"h":"~a|bc"}}`)))
	require.Empty(t, messages(errs))
	re := p.Rules[0].Match.Headers[0].Value.Automaton
	for s, want := range map[string]bool{"a": true, "bc": true, "ac": false, "ab": false, "a\n": false, "": false} {
		require.Equal(t, want, re.Match(s), s)
	}
}

// Whatever the document, Read answers and does not panic.
func FuzzRead(f *testing.F) {
	full, err := os.ReadFile("testdata/full.json")
	require.NoError(f, err)
	f.Add(full)
	keys, err := os.ReadFile("testdata/keys.json")
	require.NoError(f, err)
	f.Add(keys)
	answers, err := os.ReadFile("testdata/answers.json")
	require.NoError(f, err)
	f.Add(answers)
	f.Add([]byte(rule(`,"key":[{"header":"x"},"host",{"path":{"segment":1}}]`)))
	f.Add([]byte(`{"version":1,"rules":[
		{"name":"a","key":["host"],"algorithm":"sliding_window_log",
			"limits":["5/1s",{"requests":1,"per":"1d","algorithm":"fixed_window","offset":"4h","jitter":"5%"}],
			"overrides":[{"key":["a*"],"unlimited":true},{"key":["*"],"limits":["9/1s"]}]},
		{"name":"b","counter":"a","key":["host"],"mode":"shadow",
			"limits":[{"requests":1,"per":"1d","offset":"4h","jitter":5},
				{"requests":512,"per":"1s","algorithm":"sliding_window_log"}]}]}`))
	f.Add([]byte(limits(`{"requests":1,"per":"1s","burst":3,"algorithm":"token_bucket"},
		{"requests":1,"per":"2s","elastic":true,"algorithm":"fixed_window_per_key"}`)))
	f.Add([]byte(limits(`"1/s; 2/m",{"requests":1e3,"per":"1d","offset":"0"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := policy.ParseJSON(data)
		if err != nil {
			return
		}
		p, errs := policy.Read(n)
		require.Equal(t, p == nil, len(errs) > 0)
		for i := range errs {
			require.NotEmpty(t, errs[i].Code)
			require.True(t, json.Valid(data))
		}
		if p != nil {
			wellFormed(t, p)
		}
	})
}

func TestCosts(t *testing.T) {
	read := func(cost string) (*policy.Policy, []string) {
		p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","limits":["9/1s"],"cost":`+cost+`}]}`))
		return p, messages(problems)
	}
	search := policy.MatchedCost{
		Match: policy.Match{Paths: []policy.Pattern{{Kind: policy.Prefix, Text: "/search"}}}, Cost: policy.Cost{Fixed: 10},
	}
	for _, tt := range []struct {
		cost  string
		list  []policy.MatchedCost
		other policy.Cost
	}{
		{`2`, nil, policy.Cost{Fixed: 2}},
		{`[{"cost":2}]`, nil, policy.Cost{Fixed: 2}},
		{`[{"match":{"paths":["/search*"]},"cost":10}]`, []policy.MatchedCost{search}, policy.Cost{Fixed: 1}},
		{
			`[{"match":{"paths":["/search*"]},"cost":10},{"match":{},"cost":{"header":"X-C","max":7}}]`,
			[]policy.MatchedCost{search}, policy.Cost{Header: "x-c", Default: 1, Min: 1, Max: 7},
		},
	} {
		p, problems := read(tt.cost)
		require.Empty(t, problems, tt.cost)
		require.Equal(t, tt.list, p.Rules[0].Costs, tt.cost)
		require.Equal(t, tt.other, p.Rules[0].Cost, tt.cost)
	}
}

// The policy's exemptions are read as a rule's.
func TestExemptOfThePolicy(t *testing.T) {
	p, problems := policy.Read(parse(t, `{"version":1,
		"rules":[{"name":"a","limits":[],"exempt":[{"methods":["GET"]}]}],"exempt":[{"methods":["GET"]}]}`))
	require.Empty(t, problems)
	require.Equal(t, p.Rules[0].Exempt, p.Exempt)
	_, problems = policy.Read(parse(t, `{"version":1,"exempt":[{}]}`))
	require.Equal(t, []string{"exempt[0]: exempts_all"}, messages(problems))
}

// A cost with a match of whatever condition is for some requests, not for all.
func TestCostOfEveryCondition(t *testing.T) {
	for field := range reflect.TypeFor[policy.Match]().Fields() {
		condition := map[string]string{"Methods": `"methods":["GET"]`, "Hosts": `"hosts":["x"]`, "Paths": `"paths":["/a"]`,
			"ClientIPs": `"client_ips":["10.0.0.0/8"]`, "Headers": `"headers":{"x-plan":"*"}`}[field.Name]
		require.NotEmpty(t, condition, "give this test an example of match.%s", field.Name)
		p, problems := policy.Read(parse(t, `{"version":1,
			"rules":[{"name":"a","limits":["9/1s"],"cost":[{"match":{`+condition+`},"cost":2}]}]}`))
		require.Empty(t, messages(problems))
		require.Len(t, p.Rules[0].Costs, 1)
	}
}

func responseOf(t *testing.T, text string) (policy.Response, []policy.Problem) {
	t.Helper()
	p, errs := policy.Read(parse(t, rule(`,"response":`+text)))
	if p == nil {
		return policy.Response{}, errs
	}
	return p.Rules[0].Response, nil
}

func TestResponse(t *testing.T) {
	for text, want := range map[string]policy.Response{
		`{}`: policy.DefaultResponse(),
		`{"status":429,"content_type":"text/plain","grpc_status":"resource_exhausted"}`: policy.DefaultResponse(),
		`{"status":503,"body":"","grpc_status":14}`:                                     {Status: 503, GRPCStatus: 14},
		`{"status":599.0,"body":"a\tb\r\n","grpc_status":"unauthenticated"}`: {
			Status: 599, Body: policy.Template{{Text: "a\tb\r\n"}}, GRPCStatus: 16,
		},
		`{"status":400,"body":"%%RULE%%: %RULE%%RETRY_AFTER% s %%",
			"content_type":"application/json; charset=utf-8","grpc_status":1,
		  "headers":{"X-Reason":"%RULE%","x-left":"%REMAINING%/%LIMIT% 100%%","x-fixed":"a,b"}}`: {
			Status: 400, GRPCStatus: 1, ContentType: "application/json; charset=utf-8",
			Body: policy.Template{{Text: "%RULE%: "}, {Value: policy.ValueRule}, {Value: policy.ValueRetryAfter},
				{Text: " s %"}},
			Headers: []policy.ResponseHeader{
				{Name: "x-reason", Value: policy.Template{{Value: policy.ValueRule}}},
				{Name: "x-left", Value: policy.Template{
					{Value: policy.ValueRemaining}, {Text: "/"}, {Value: policy.ValueLimit}, {Text: " 100%"},
				}},
				{Name: "x-fixed", Value: policy.Template{{Text: "a,b"}}},
			},
		},
	} {
		got, errs := responseOf(t, text)
		require.Empty(t, messages(errs), text)
		require.Equal(t, want, got, text)
	}
}

// Who lacks a part of the key gets the response of the rule, but for what missing_key
// gives and a default body that names the part.
func TestResponseToAMissingKey(t *testing.T) {
	missing := policy.Template{{Text: "missing "}, {Value: policy.ValueMissing}}
	given := []policy.ResponseHeader{{Name: "x-a", Value: policy.Template{{Text: "1"}}}}
	for text, want := range map[string]policy.Response{
		`"missing_key":"deny"`:      {Status: 429, Body: missing, GRPCStatus: 8},
		`"missing_key":{"deny":{}}`: {Status: 429, Body: missing, GRPCStatus: 8},
		`"missing_key":{"deny":{"status":401,"body":"who are you?","grpc_status":"unauthenticated"}}`: {
			Status: 401, Body: policy.Template{{Text: "who are you?"}}, GRPCStatus: 16,
		},
		`"missing_key":"deny","response":{"status":503,"body":"no","content_type":"text/html",
			"headers":{"x-a":"1"},"grpc_status":14}`: {
			Status: 503, Body: policy.Template{{Text: "no"}}, ContentType: "text/html", Headers: given, GRPCStatus: 14,
		},
		`"response":{"status":503,"content_type":"text/html","headers":{"x-a":"1"},"grpc_status":14},
			"missing_key":{"deny":{"headers":{"x-b":"%MISSING%"}}}`: {
			Status: 503, Body: missing, ContentType: "text/html", GRPCStatus: 14,
			Headers: []policy.ResponseHeader{{Name: "x-b", Value: policy.Template{{Value: policy.ValueMissing}}}},
		},
		`"response":{"body":"{}","content_type":"application/json"},
			"missing_key":{"deny":{"body":"","content_type":"text/plain"}}`: {Status: 429, GRPCStatus: 8},
	} {
		p, errs := policy.Read(parse(t, rule(`,"key":[{"header":"u"}],`+text)))
		require.Empty(t, messages(errs), text)
		require.Equal(t, policy.MissingDeny, p.Rules[0].MissingKey, text)
		require.Equal(t, &want, p.Rules[0].MissingResponse, text)
	}
	p, errs := policy.Read(parse(t, rule(`,"missing_key":"share"`)))
	require.Empty(t, messages(errs))
	require.Nil(t, p.Rules[0].MissingResponse)
}

// A template that is taken says what its text does, sign for sign.
func FuzzResponseBody(f *testing.F) {
	for _, text := range []string{"", "plain", "%RULE%", "%%RULE%%", "a%RETRY_AFTER%b%%%LIMIT%", "100%", "%REMAINING",
		"%rule%"} {
		f.Add(text)
	}
	names := map[policy.Placeholder]string{
		policy.ValueRule: "%RULE%", policy.ValueRetryAfter: "%RETRY_AFTER%", policy.ValueLimit: "%LIMIT%",
		policy.ValueRemaining: "%REMAINING%",
		policy.ValueMissing:   "%MISSING%",
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		response, errs := responseOf(t, `{"body":`+string(policy.AppendString(nil, text))+`}`)
		if len(errs) > 0 {
			return
		}
		var again strings.Builder
		for _, part := range response.Body {
			again.WriteString(strings.ReplaceAll(part.Text, "%", "%%"))
			again.WriteString(names[part.Value])
		}
		require.Equal(t, text, again.String())
	})
}

// A limit that requests say has its default as its own number, and what counts by the most
// that any request may use counts by its max.
func TestALimitFromTheRequest(t *testing.T) {
	p := valid(t, "d", `{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["7/1s",`+
		`{"requests":{"jwt":{"provider":"corp","claim":["plan","rpm"]},"default":3,"max":90},"per":"1m"},`+
		`{"requests":{"header":"X-Limit","trusted":true,"default":0,"max":1},"per":"1h","algorithm":"fixed_window"},`+
		`{"requests":{"property":["request","query"],"trusted":true,"default":2,"max":2},"per":"month",`+
		`"algorithm":"fixed_window"}],`+
		`"overrides":[{"key":["a"],"limits":["2/1m"]}],"settle":{}}`)
	r := &p.Rules[0]
	require.Nil(t, r.Limits[0].Requested)
	require.Equal(t, &policy.RequestedLimit{
		Part: policy.KeyPart{Kind: policy.KeyJWT, Name: "corp", Path: []string{"plan", "rpm"}}, Default: 3, Max: 90,
	}, r.Limits[1].Requested)
	require.Equal(t, policy.KeyPart{Kind: policy.KeyHeader, Name: "x-limit"}, r.Limits[2].Requested.Part)
	var limits, most []uint32
	for i := range r.Limits {
		limits, most = append(limits, r.Limits[i].Limit), append(most, r.Limits[i].Most())
		require.Nil(t, r.Overrides[0].Limits[i].Requested, "an override has a number")
	}
	require.Equal(t, []uint32{7, 3, 0, 2}, limits)
	require.Equal(t, []uint32{7, 90, 1, 2}, most)
	require.EqualValues(t, 90, r.Limits[1].Units, "the log remembers what any request may use")
	require.Equal(t, uint32(math.MaxUint32), r.Settle.Max, "an answer may take more than any request may use")
	require.True(t, r.Overrides[0].Raises(r), "a request may say 0")
}

// Rules that spend the same leased units have the same limit for each request.
func TestLeasedLimitsFromTheRequestAreTheSame(t *testing.T) {
	read := func(a, b string) []string {
		rule := func(name, from string) string {
			return `{"name":"` + name + `","counter":"c","scope":"cluster","key":["host"],
				"limits":[{"requests":` + from + `,"per":"1m"}]}`
		}
		_, problems := policy.Read(parse(t, `{"version":1,"rules":[`+rule("a", a)+`,`+rule("b", b)+`]}`))
		return messages(problems)
	}
	const own = `{"jwt":{"provider":"p","claim":"c"},"default":5,"max":9}`
	require.Empty(t, read(own, own))
	for _, other := range []string{
		`5`, `{"jwt":{"provider":"p","claim":"d"},"default":5,"max":9}`,
		`{"jwt":{"provider":"q","claim":"c"},"default":5,"max":9}`,
		`{"jwt":{"provider":"p","claim":"c"},"default":5,"max":8}`, `{"header":"c","trusted":true,"default":5,"max":9}`,
	} {
		require.Equal(t, []string{"rules[1].limits: counter_limits"}, read(own, other), other)
		require.Equal(t, []string{"rules[1].limits: counter_limits"}, read(other, own), other)
	}
}

func TestCapacityByDefault(t *testing.T) {
	p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","limits":["9/1s"]}]}`))
	require.Empty(t, problems)
	require.EqualValues(t, policy.DefaultCapacity, p.Rules[0].Capacity)
}

func TestClusterDefaults(t *testing.T) {
	const rule = `{"name":"a","limits":["9/1s"],"scope":"cluster"}`
	defaults := &policy.Quota{Cluster: "sluice_quota", TimeoutNs: 100_000_000}
	for doc, want := range map[string]*policy.Quota{
		`{"version":1,"rules":[` + rule + `]}`:                   defaults,
		`{"version":1,"quota":{},"rules":[` + rule + `]}`:        defaults,
		`{"version":1,"rules":[{"name":"a","limits":["9/1s"]}]}`: nil,
		`{"version":1,"quota":{}}`:                               defaults,
		`{"version":1,"quota":{"timeout":"1ms"},"rules":[` + rule + `]}`: {Cluster: "sluice_quota",
			TimeoutNs: policy.MinTimeoutNs},
		`{"version":1,"quota":{"cluster":"q"},"rules":[` + rule + `]}`: {Cluster: "q", TimeoutNs: 100_000_000},
		`{"version":1,"quota":{"timeout":"10s","cluster":"x y"}}`: {Cluster: "x y",
			TimeoutNs: policy.MaxTimeoutNs},
		`{"version":1,"quota":{"cluster":"` + strings.Repeat("a", 256) + `"}}`: {Cluster: strings.Repeat("a", 256),
			TimeoutNs: 100_000_000},
	} {
		p, problems := policy.Read(parse(t, doc))
		require.Empty(t, messages(problems), doc)
		require.Equal(t, want, p.Quota, doc)
	}
	p, _ := policy.ReadPushed(parse(t, `{"version":1,"revision":"7","rules":[`+rule+`]}`))
	require.Equal(t, policy.ScopeCluster, p.Rules[0].Scope)
	require.Equal(t, uint32(quota.LeaseAuto), p.Rules[0].Lease)
	require.Equal(t, policy.UnavailableLocal, p.Rules[0].OnUnavailable)
}

func TestQuotaProblems(t *testing.T) {
	for doc, want := range map[string]string{
		`{"cluster":"` + strings.Repeat("a", 257) + `"}`: "quota.cluster: too_long",
		`{"timeout":"0"}`:        "quota.timeout: duration_range",
		`{"timeout":"999999ns"}`: "quota.timeout: duration_range",
		`{"timeout":"10001ms"}`:  "quota.timeout: duration_range",
	} {
		_, problems := policy.Read(parse(t, `{"version":1,"quota":`+doc+`}`))
		for i := range problems {
			problems[i].Args = nil
		}
		require.Equal(t, []string{want}, messages(problems), doc)
	}
}

// A number may be a window's name: the first that it fits is meant.
func TestLimitNamed(t *testing.T) {
	r := policy.Rule{Limits: []policy.Limit{{Name: "burst"}, {}, {Name: "1"}, {Name: "0"}}}
	for text, want := range map[string]int{"burst": 0, "0": 0, "1": 1, "2": 2, "3": 3, "4": -1, "01": -1, "-1": -1,
		"daily": -1} {
		require.Equal(t, want, r.LimitNamed(text), text)
	}
}
