package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	windowfields "github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// usagePolicy reads a policy of these rules in which clients may ask for their usage.
func usagePolicy(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"usage":{"path":"/usage"},"rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems, rules)
	return p
}

func engineOf(p *policy.Policy, host Host) *Engine {
	return New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

// look has the client of the proxy's present request ask for its usage.
func look(t *testing.T, p *proxy, e *Engine) result.Usage {
	t.Helper()
	present := p.Headers
	p.Headers = maps.Clone(present)
	_, query, _ := strings.Cut(append(present[":path"], "")[0], "?")
	p.Headers[":method"], p.Headers[":path"] = []string{"GET"}, []string{"/usage?" + query}
	defer func() { p.Headers = present }()
	require.True(t, e.Decide().IsLook)
	text := e.AppendUsage(nil, nil)
	var usage result.Usage
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&usage), "%s", text)
	return usage
}

// shownBy are the rules that a client is to be shown, said in another way than the engine does: those that
// judge its request in the policy without conditions on method and path.
func shownBy(t *testing.T, p *proxy, rules string) []result.RuleUsage {
	all := usagePolicy(t, rules)
	all.Usage = nil
	fromSome := func(m policy.Match) bool { return len(m.Methods)+len(m.Paths) > 0 }
	all.Exempt = slices.DeleteFunc(all.Exempt, fromSome)
	for i := range all.Rules {
		r := &all.Rules[i]
		r.Match.Methods, r.Match.Paths = nil, nil
		r.Exempt = slices.DeleteFunc(r.Exempt, fromSome)
	}
	copied := *p
	copied.Store = maps.Clone(p.Store)
	copied.Headers = maps.Clone(p.Headers)
	_, query, _ := strings.Cut(append(p.Headers[":path"], "")[0], "?")
	copied.Headers[":path"] = []string{"/other?" + query}
	v := engineOf(all, &copied).Peek()
	shown := []result.RuleUsage{}
	for _, s := range v.Subjects {
		isOfRoute := func(k policy.KeyPart) bool {
			return k.Kind == policy.KeyMethod || k.Kind == policy.KeyPath || k.Kind == policy.KeyRoute
		}
		lacks := func(value policy.Value) bool { return !value.Present }
		if r := s.Rule.Policy; !r.Hidden && !s.Shadow && !slices.ContainsFunc(r.Key, isOfRoute) &&
			!slices.ContainsFunc(s.Key.Parts, lacks) {
			shown = append(shown, usageOf(s, v.Now))
		}
	}
	return shown
}

// usageOf is what peek says of a rule, in the words of a client's usage.
func usageOf(s *decide.Subject, now int64) result.RuleUsage {
	u := result.RuleUsage{Name: s.Rule.Policy.Name, Windows: []result.WindowUsage{}}
	if s.Unlimited {
		return u
	}
	if s.Rule.Policy.Block != nil {
		left := windowfields.Seconds(s.BlockedNs(now))
		u.Blocked = &left
	}
	held := uint32(0)
	if n := respond.Held(s); n != nil {
		held = *n
	}
	for _, w := range respond.Windows(s, now) {
		if w.Unlimited {
			continue
		}
		one := result.WindowUsage{
			Limit: *w.Limit, Per: float64(w.PerNs) / 1e9, Used: w.Used, Held: held, Remaining: *w.Remaining,
			Reset: windowfields.Seconds(w.ResetNs),
		}
		if w.Requests != nil {
			one.Requests = *w.Requests
		}
		u.Windows = append(u.Windows, one)
	}
	return u
}

// holding are rules whose units are held, which hosttest's are not.
const holding = `,{"name":"tokens","key":[{"header":"u"}],"limits":["9/1s","40/1m"],"cost":{"header":"c"},` +
	`"settle":{"to":{"header":"x"}},"hold":"10s","capacity":3,"block":"3s"},` +
	`{"name":"slots","key":["client_ip"],"algorithm":"concurrency","limits":[3],"hold":"10s"}`

// TestUsageIsWhatPeekSays: under random policies with all algorithms, after random requests that count, hold
// and block, clients are shown the rules that judge some request of theirs, with the figures of peek. No
// look leaves a trace in shared data or in a metric.
func TestUsageIsWhatPeekSays(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 15))
	looks, shown := 0, map[string]int{}
	for range 400 {
		data := make([]byte, 700)
		for i := range data {
			data[i] = byte(dice.Uint32())
		}
		in := hosttest.Tape(data)
		rules := in.Rules(in.Next()%2 == 1)
		if strings.Contains(rules, `],"exempt"`) {
			before, exempt, _ := strings.Cut(rules, `],"exempt"`)
			rules = before + holding + `],"exempt"` + exempt
		} else {
			rules += holding
		}
		p := hosttest.New()
		p.Clock = 1_700_000_000_123_456_789
		e := engineOf(usagePolicy(t, rules), p)
		var holds []hold.Hold
		for step := 0; step < 40 && len(in) > 0; step++ {
			in.Request(p, step%7 == 6)
			if v := e.Decide(); v.Allowed {
				holds = v.BeginHolds(holds)
			}
			if n := len(holds); n > 0 && in.Next()%3 == 0 {
				holds[n-1].Settle(uint32(in.Next()%9), metrics.ByAnswer, p.Clock)
				holds = holds[:n-1]
			}
			before, counted := maps.Clone(p.Store), series(e)
			if in.Next()%4 == 0 { // a worker that has registered nothing
				e = engineOf(usagePolicy(t, rules), p)
				counted = series(e)
				holds = nil
			}
			usage := look(t, p, e)
			require.Equal(t, before, p.Store, "a look wrote: %s", rules)
			require.Equal(t, counted, series(e), rules)
			require.Equal(t, shownBy(t, p, rules), usage.Rules, "%v\n%s", p.Headers, rules)
			looks++
			for _, r := range usage.Rules {
				shown[strings.TrimRight(r.Name, "0123456789")]++
			}
		}
	}
	t.Logf("%d looks, rules shown: %v", looks, shown)
	require.Positive(t, shown["r"]*shown["tokens"]*shown["slots"])
}

// asked are requests with what their client is told: name, used and limit of each window, and what is left of
// a block.
func asked(t *testing.T, p *proxy, e *Engine) (text string) {
	t.Helper()
	for _, r := range look(t, p, e).Rules {
		text += r.Name
		if r.Windows == nil {
			text += " null"
		}
		for _, w := range r.Windows {
			text += fmt.Sprintf(" %d/%d", w.Used, w.Limit)
		}
		if r.Blocked != nil {
			text += fmt.Sprintf(" blocked %d", *r.Blocked)
		}
		text += "; "
	}
	return strings.TrimSuffix(text, "; ")
}

// TestWhichRulesAClientIsShown goes through the conditions, exemptions, keys and modes of rules.
func TestWhichRulesAClientIsShown(t *testing.T) {
	const user = `"key":[{"header":"u"}],"limits":["9/1h"]`
	for rule, want := range map[string]string{
		user: "r 1/9",
		`"match":{"methods":["POST"],"paths":["/v1/*"]},` + user: "r 0/9",
		`"match":{"hosts":["api.example.com"]},` + user:          "r 1/9",
		`"match":{"hosts":["other.example.com"]},` + user:        "",
		`"match":{"headers":{"u":"a"}},` + user:                  "r 1/9",
		`"match":{"headers":{"u":"b"}},` + user:                  "",
		`"match":{"client_ips":["192.0.2.0/24"]},` + user:        "r 1/9",
		`"match":{"client_ips":["198.51.100.0/24"]},` + user:     "",

		`"exempt":[{"headers":{"u":"a"}}],` + user:                          "",
		`"exempt":[{"methods":["GET"]},{"paths":["/*"]}],` + user:           "r 0/9",
		`"exempt":[{"headers":{"u":"a"},"paths":["/usage"]}],` + user:       "r 1/9",
		`"exempt":[{"hosts":["api.example.com"]}],` + user:                  "",
		`"key":[{"header":"none"}],"limits":["9/1h"]`:                       "",
		`"key":[{"header":"none"}],"missing_key":"share","limits":["9/1h"]`: "",
		`"limits":["9/1h"]`: "r 1/9",
		`"key":[{"header":"u"},"method"],"limits":["9/1h"]`:                                             "",
		`"key":["path",{"header":"u"}],"limits":["9/1h"]`:                                               "",
		`"key":["route"],"limits":["9/1h"]`:                                                             "",
		`"key":[{"property":["request","url_path"]}],"limits":["9/1h"]`:                                 "",
		`"key":[{"property":["xds","route_name"]}],"limits":["9/1h"]`:                                   "",
		`"key":[{"first_of":[{"header":"u"},"path"]}],"limits":["9/1h"]`:                                "",
		`"key":[{"query":"q"}],"limits":["9/1h"]`:                                                       "r 1/9",
		`"mode":"shadow",` + user:                                                                       "",
		`"mode":"off",` + user:                                                                          "",
		`"enforce_percent":0,` + user:                                                                   "",
		`"usage":false,` + user:                                                                         "",
		`"usage":true,` + user:                                                                          "r 1/9",
		`"key":[{"header":"u"}],"limits":[]`:                                                            "r",
		user + `,"overrides":[{"key":["a"],"unlimited":true}]`:                                          "r",
		user + `,"overrides":[{"key":["a"],"limits":["3/1h"]}]`:                                         "r 1/3",
		`"key":[{"header":"u"}],"limits":["9/1h","5/1m"],"overrides":[{"key":["a"],"limits":["7/1h"]}]`: "r 1/7",
		`"key":[{"header":"u"}],"limits":[{"requests":{"header":"l","trusted":true,"default":4,"max":9},` +
			`"per":"1h"}]`: "r 1/6",
		`"key":[{"header":"u"}],"limits":["0/1h"],"block":"1h"`: "r 0/0 blocked 3600",
	} {
		p := hosttest.New()
		p.Clock = 3600e9
		e := engineOf(usagePolicy(t, `{"name":"r",`+rule+`}`), p)
		p.With("u", "a", "l", "6", ":path", "/v2?q=x")
		p.Attributes = map[string]string{"xds.route_name": "x", "request.url_path": "/v2"}
		e.Decide()
		require.Equal(t, want, asked(t, p, e), rule)
	}
}

// A client that is exempt from all rules is shown none.
func TestExemptFromAll(t *testing.T) {
	p := hosttest.New()
	e := engineOf(usagePolicy(t, `{"name":"r","limits":["9/1h"]}],`+
		`"exempt":[{"headers":{"u":"a"}},{"paths":["/usage"]}`), p)
	p.With("u", "a")
	require.Empty(t, asked(t, p, e))
	p.With("u", "b")
	require.Equal(t, "r 0/9", asked(t, p, e))
}

// TestOnlyRulesThatNameThePathDecideALook: other rules neither count a look nor deny it, whatever they match.
func TestOnlyRulesThatNameThePathDecideALook(t *testing.T) {
	p := hosttest.New()
	e := engineOf(usagePolicy(t, `{"name":"all","key":[{"header":"u"}],"limits":["1/1h"]},`+
		`{"name":"pattern","match":{"paths":["/*","~/usage"]},"limits":["1/1h"]},`+
		`{"name":"named","match":{"paths":["/v1/*","/usage"]},"key":[{"header":"u"}],"limits":["2/1h"]}`), p)
	p.With("u", "a")
	e.Decide()
	require.Equal(t, "all 1/1; pattern 1/1; named 1/2", asked(t, p, e))
	require.Equal(t, "all 1/1; pattern 1/1; named 2/2", asked(t, p, e))
	for path, isLook := range map[string]bool{
		"/usage": true, "/usage?a=b": true, "/usag%65": true, "/usage/": false, "/usage/x": false, "/usages": false,
		"/": false, "/USAGE": false,
	} {
		p.With("u", "b", ":path", path)
		require.Equal(t, isLook, e.Decide().IsLook, path)
	}
	for method, isLook := range map[string]bool{"GET": true, "HEAD": true, "POST": false, "OPTIONS": false, "get": false} {
		p.With("u", "c", ":path", "/usage", ":method", method)
		require.Equal(t, isLook, e.Decide().IsLook, method)
	}
	p.With("u", "a", ":path", "/usage")
	v := e.Decide()
	require.True(t, v.IsLook)
	require.Equal(t, "named", v.DeniedBy().Name)
}

// TestAFailingStoreIsNotKnown: if the counters cannot be read, their rule is shown without figures.
func TestAFailingStoreIsNotKnown(t *testing.T) {
	p := hosttest.New()
	e := engineOf(usagePolicy(t, `{"name":"r","key":[{"header":"u"}],"limits":["9/1h"],"block":"1h"}`), p)
	p.With("u", "a")
	e.Decide()
	p.Fail = "get"
	require.Equal(t, "r null", asked(t, p, e))
	require.Contains(t, string(e.AppendUsage(nil, nil)), `{"name":"r","blocked":null,"windows":null}`)
	p.Fail = "set"
	require.Equal(t, "r 1/9 blocked 0", asked(t, p, e))
}
