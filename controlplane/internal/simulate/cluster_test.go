package simulate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

var clusterLines = flag.Int("cluster-lines", 500, "how many random requests are compared for each algorithm")

// randomLines are requests of three users over three proxies, which come in bursts.
func randomLines(seed uint64, n int) string {
	dice := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	at := int64(1_700_000_000_000)
	for range n {
		if dice.IntN(4) == 0 {
			at += dice.Int64N(400)
		}
		if dice.IntN(100) == 0 {
			at += dice.Int64N(5000)
		}
		fmt.Fprintf(&b, `{"at_ms":%d,"headers":{"u":"%d","x-cost":"%d"}}`+"\n", at, dice.IntN(3), 1+dice.IntN(3))
	}
	return b.String()
}

// policyOf is a policy of the rules, each with the same scope.
func policyOf(rules []string, scope string) string {
	return "version: 1\nheaders: both\nrules:\n  - {" + strings.Join(rules, scope+"}\n  - {") + scope + "}\n"
}

// notAsked is what three proxies say of a rule that nobody was asked about, because another rule had
// denied. One proxy needs not ask.
var notAsked = regexp.MustCompile(`("mode":"enforced","allowed":true),"reason":"not_asked"`)

// asOneProxy compares what lines come to over three proxies, by rules with a scope, with what one
// proxy makes of them, and returns how many are denied.
func asOneProxy(t *testing.T, rules []string, scope, lines string, words *regexp.Regexp) (denied int) {
	t.Helper()
	one, three := simulateLines(t, policyOf(rules, ""), 1, lines), simulateLines(t, policyOf(rules, scope), 3, lines)
	require.Len(t, three, len(one))
	for i := range one {
		isDenied := strings.Contains(one[i], `"allowed":false,"status"`)
		if isDenied {
			three[i] = notAsked.ReplaceAllString(three[i], "$1")
		}
		require.Equal(t, words.FindAllString(one[i], -1), words.FindAllString(three[i], -1),
			"line %d by %q:\n%s\n%s", i+1, rules, one[i], three[i])
		denied += strings.Count(one[i], `"allowed":false,"status"`)
	}
	return denied
}

// answeredLines are requests of three users, each answered within two seconds.
func answeredLines(seed uint64, n int) string {
	dice := rand.New(rand.NewPCG(seed, 2))
	var b strings.Builder
	at := int64(1_700_000_000_000)
	type running struct {
		id  int
		end int64
	}
	var all []running
	for id := range n {
		at += dice.Int64N(200)
		all = slices.DeleteFunc(all, func(r running) bool {
			if r.end <= at {
				status := []int{200, 401}[dice.IntN(2)]
				fmt.Fprintf(&b, `{"at_ms":%d,"answer":"%d","status":%d,"end":true}`+"\n", at, r.id, status)
			}
			return r.end <= at
		})
		all = append(all, running{id, at + 1 + dice.Int64N(2000)})
		const request = `{"at_ms":%d,"id":"%d","headers":{"u":"%d","x-cost":"%d"}}` + "\n"
		fmt.Fprintf(&b, request, at, id, dice.IntN(3), 1+dice.IntN(3))
	}
	return b.String()
}

var decided = regexp.MustCompile(`"(allowed|answer|settled|reason|used|held|remaining|retry_after_ms|reset_ms)":` +
	`(\[[^]]*\]|[^,}]*)`)

// TestHeldOverAllProxies: three proxies hold and are charged as one is.
func TestHeldOverAllProxies(t *testing.T) {
	for _, rule := range []string{
		`key: [{header: u}], algorithm: concurrency, limits: [2]`,
		`key: [{header: u}], limits: [9/5s], cost: {header: x-cost, default: 1, max: 5}, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [9/5s], algorithm: fixed_window_per_key, settle: {to: milliseconds, max: 30}`,
		`key: [{header: u}], limits: [9/5s, 40/1m], algorithm: sliding_window_log, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [9/5s], algorithm: sliding_window_counter, settle: {when: {status: [401]}}`,
		`key: [{header: u}], limits: [{requests: 9, per: 5s, burst: 6}], algorithm: token_bucket, ` +
			`settle: {to: milliseconds, max: 9}`,
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			lines := answeredLines(1, *clusterLines)
			require.Positive(t, asOneProxy(t, []string{"name: r, " + rule}, ", scope: cluster", lines, decided))
		})
	}
}

// TestALongRequestHoldsNothingAnyMore: what it holds ends hold after max_hold, and at most an
// eighth later, in one proxy as over all. It is charged then, and its answer changes nothing.
func TestALongRequestHoldsNothingAnyMore(t *testing.T) {
	const hold, maxHold, answered = 10, 20, 50
	var b strings.Builder
	line := func(second int, text string) {
		fmt.Fprintf(&b, `{"at_ms":%d,%s}`+"\n", 1_700_000_000_000+1000*int64(second), text)
	}
	line(0, `"id":"long"`)
	for second := 1; second < 60; second++ {
		if second == answered {
			line(second, `"answer":"long","status":401,"end":true`)
		}
		line(second, `"op":"get","rule":"r"`)
	}
	for _, c := range []struct {
		rule, first, then string
	}{
		{`algorithm: concurrency, limits: [9]`, `"remaining":8`, `"remaining":9`},
		{`limits: [9/1d], cost: 2, settle: {when: {status: [401]}}`, `"used":0,"remaining":7`, `"used":2,"remaining":7`},
		{
			`algorithm: token_bucket, limits: [9/366d], cost: 2, settle: {when: {status: [200]}}`,
			`"used":0,"remaining":7`, `"used":2,"remaining":7`,
		},
	} {
		t.Run(c.rule, func(t *testing.T) {
			rule := fmt.Sprintf("name: r, hold: %ds, max_hold: %ds, %s", hold, maxHold, c.rule)
			for scope, proxies := range map[string]int{"": 1, ", scope: cluster": 3} {
				ended := 0
				for i, out := range simulateLines(t, policyOf([]string{rule}, scope), proxies, b.String())[1:] {
					second := i + 1
					if second > answered {
						second--
					}
					switch {
					case strings.Contains(out, `"answer"`):
					case ended > 0:
						require.Contains(t, out, c.then)
					case strings.Contains(out, c.then):
						ended = second
					default:
						require.Contains(t, out, c.first)
					}
				}
				require.GreaterOrEqual(t, ended, maxHold+hold, scope)
				require.LessOrEqual(t, ended, maxHold+hold+hold/8+1, scope)
			}
		})
	}
}

// TestOperationsNameTheKeyAsTheFilterDoes: the same counter, key and limits.
func TestOperationsNameTheKeyAsTheFilterDoes(t *testing.T) {
	long := strings.Repeat("x", 9000)
	const (
		byUser  = `key: [{header: u}], limits: ["10/1h"]`
		byFirst = `key: [{first_of: [{header: u}, {client_ip: {}}]}], limits: ["10/1h"]`
		twoOver = `overrides: [{key: [b], limits: ["7/1h"]}, {key: ["a*"], limits: ["20/1h"]}]`
	)
	cases := map[string]struct {
		rule  string // beside name and scope
		user  string // header u, empty = none
		key   string
		limit int
	}{
		"one part":       {byUser, "a", `"a"`, 10},
		"no part":        {`limits: ["10/1h"]`, "", ``, 10},
		"two parts":      {`key: [{header: u}, {path: {segment: 1}}], limits: ["10/1h"]`, "a", `"a","x"`, 10},
		"a network":      {`key: [{client_ip: {v4_prefix: 24}}], limits: ["10/1h"]`, "", `"192.0.2.0/24"`, 10},
		"first_of":       {byFirst, "", `"client_ip=192.0.2.7"`, 10},
		"windows":        {`key: [{header: u}], limits: ["50/1d", "10/1h"]`, "a", `"a"`, 50},
		"jitter":         {`key: [{header: u}], limits: [{requests: 10, per: 1h, jitter: 50%}]`, "a", `"a"`, 10},
		"counter":        {`counter: shared, ` + byUser, "a", `"a"`, 10},
		"override":       {byUser + `, ` + twoOver, "ab", `"ab"`, 20},
		"end":            {byUser + `, overrides: [{key: ["*b"], limits: ["20/1h"]}]`, "ab", `"ab"`, 20},
		"expression":     {byUser + `, overrides: [{key: ["~a+b"], limits: ["20/1h"]}]`, "aab", `"aab"`, 20},
		"too long, less": {byUser + `, overrides: [{key: ["~a+b"], limits: ["2/1h"]}]`, long, `"` + long + `"`, 2},
		"too long, more": {byUser + `, overrides: [{key: ["~a+b"], limits: ["20/1h"]}]`, long, `"` + long + `"`, 10},
		"override of two": {
			`key: [{header: u}, {method: {}}], limits: ["10/1h"], overrides: [{key: ["a", "*"], limits: ["20/1h"]}]`,
			"a", `"a","GET"`, 20,
		},
	}
	policy, lines := "version: 1\ndomain: d\nrules:\n", []string{}
	names := slices.Sorted(maps.Keys(cases))
	for _, name := range names {
		c := cases[name]
		const rule = "  - {name: %q, match: {headers: {x-rule: %q}}, scope: cluster, lease: off, %s}\n"
		policy += fmt.Sprintf(rule, name, name, c.rule)
		headers := fmt.Sprintf(`{"x-rule":%q,"u":%q}`, name, c.user)
		if c.user == "" {
			headers = fmt.Sprintf(`{"x-rule":%q}`, name)
		}
		request := fmt.Sprintf(`{"at_ms":1,"client_ip":"192.0.2.7","path":"/x/y","headers":%s}`, headers)
		lines = append(lines, request, request, fmt.Sprintf(`{"at_ms":1,"op":"get","rule":%q,"key":[%s]}`, name, c.key))
	}
	out := simulateLines(t, policy, 1, strings.Join(lines, "\n"))
	for i, name := range names {
		require.Contains(t, out[3*i+2], `"value":2,`, name)
		require.Contains(t, out[3*i+2], fmt.Sprintf(`"limit":%d,`, cases[name].limit), name)
		require.Contains(t, out[3*i+1], fmt.Sprintf(`"limit":%d,`, cases[name].limit), "%s: as the filter has it", name)
	}
}

func TestAnOperationNamesTheOverrideAsTheFilterDoes(t *testing.T) {
	const rule = `name: r, key: [{header: u}], scope: cluster, limits: [5/1s], ` +
		`overrides: [{name: vip, key: [a], limits: [9/1s]}]`
	out := simulateLines(t, policyOf([]string{rule}, ""), 1, `{"at_ms":1,"headers":{"u":"a"}}
{"at_ms":1,"op":"peek","rule":"r","key":["a"]}
{"at_ms":1,"op":"peek","rule":"r","key":["b"]}`)
	require.Contains(t, out[0], `"override":"vip"`)
	require.Contains(t, out[1], `"override":"vip"`)
	require.NotContains(t, out[2], "override")
}

// With leases no user of three proxies gets more than the limit that holds for it.
func TestLeasesStayWithinTheLimit(t *testing.T) {
	const cost = `, cost: {header: x-cost, max: 5}`
	for fields, limits := range map[string]map[string]int{ // by user, where it is not 5
		"": {}, cost: {},
		`, overrides: [{key: ["1"], limits: ["2/1s"]}, {key: ["2"], unlimited: true}]`: {"1": 2, "2": 1 << 30},
		cost + `, overrides: [{key: ["1"], limits: ["2/1s"]}]`:                         {"1": 2},
	} {
		t.Run(fields, func(t *testing.T) {
			rule := "name: r, key: [{header: u}], scope: cluster, limits: [5/1s]" + fields
			lines := randomLines(3, *clusterLines)
			requests, admitted := strings.Split(lines, "\n"), map[string]int{}
			for i, text := range simulateLines(t, policyOf([]string{rule}, ""), 3, lines) {
				var l struct {
					AtMs    int64 `json:"at_ms"`
					Allowed bool
					Headers map[string]string
				}
				require.NoError(t, json.Unmarshal([]byte(text), &l), text)
				if !l.Allowed {
					continue
				}
				require.NoError(t, json.Unmarshal([]byte(requests[i]), &l), requests[i])
				user, limit := l.Headers["u"], 5
				units := 1
				if own, has := limits[user]; has {
					limit = own
				}
				if strings.HasPrefix(fields, cost) {
					units = int(l.Headers["x-cost"][0] - '0')
				}
				window := fmt.Sprint(user, " ", l.AtMs/1000)
				admitted[window] += units
				require.LessOrEqual(t, admitted[window], limit, window)
			}
			require.NotEmpty(t, admitted)
		})
	}
}

var clusterPolicies = flag.Int("cluster-policies", 20, "how many random policies are compared")

// decision is the part of a line that says what becomes of the request, and why.
var decision = regexp.MustCompile(`"allowed":(true,"status":\d+|false,"status":\d+,"denied_by":"\w+")`)

// all is the whole line.
var all = regexp.MustCompile(`.*`)

// userHeader begins the headers of a line.
var userHeader = regexp.MustCompile(`"u":`)

// randomRules are one to three rules. Some share a counter.
func randomRules(dice *rand.Rand) (rules []string) {
	pick := func(of ...string) string { return of[dice.IntN(len(of))] }
	window := func(digit string) string { // before those of the period
		n, per := 3+dice.IntN(20), digit+pick("1s", "2s", "10s")
		how := pick("fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter",
			fmt.Sprint("token_bucket, burst: ", 1+dice.IntN(n)))
		requests := fmt.Sprint(n)
		if dice.IntN(3) == 0 && !strings.HasPrefix(how, "token_bucket") {
			requests = fmt.Sprintf("{header: l, trusted: true, default: %d, max: 22}", n)
		}
		return fmt.Sprintf("{requests: %s, per: %s, algorithm: %s}", requests, per, how)
	}
	shared := fmt.Sprintf("counter: c, key: [{header: u}], limits: [%d/10s]", 3+dice.IntN(20))
	override := `, overrides: [{key: ["1"], limits: ["2/10s"]}, {key: ["2"], unlimited: true}]`
	for i := range 1 + dice.IntN(3) {
		rule := fmt.Sprintf("name: r%d, %s", i, shared)
		if dice.IntN(3) > 0 {
			limits := window("")
			if dice.IntN(2) > 0 {
				limits += ", " + window("3")
			}
			key := pick("{header: u}", "{header: u}, {header: v}", "{header: v}")
			rule = fmt.Sprintf("name: r%d, key: [%s], limits: [%s]", i, key, limits)
			counted := pick("", ", count_denied: true", ", mode: shadow, count_denied: true")
			rule += pick("", "", "", ", enforce_percent: 50", ", mode: shadow", counted)
			if strings.Contains(rule, "token_bucket") {
				rule = strings.TrimSuffix(rule, ", count_denied: true")
			}
		}
		if rule == fmt.Sprintf("name: r%d, %s", i, shared) {
			rule += pick("", override)
		}
		rules = append(rules, rule+pick("", ", cost: {header: x-cost, max: 5}"))
	}
	return rules
}

// Without leases, three proxies decide by any rules as one proxy does: the same words,
// and of rules that share a counter the same decision. Their waits differ: the service
// knows one rule's alone.
func TestRandomRulesWithoutALease(t *testing.T) {
	denied := 0
	for seed := range uint64(*clusterPolicies) {
		dice := rand.New(rand.NewPCG(seed, 3))
		rules := randomRules(dice)
		lines := userHeader.ReplaceAllStringFunc(randomLines(seed, 300), func(string) string {
			return fmt.Sprintf(`"v":"1","l":"%d","u":`, 5+dice.IntN(20))
		})
		words := all
		if strings.Count(policyOf(rules, ""), "counter: c") > 1 {
			words = decision
		}
		denied += asOneProxy(t, rules, ", scope: cluster, lease: off", lines, words)
	}
	require.Greater(t, denied, 30**clusterPolicies)
}

// A client that stays below every window's rate is denied for at most 10 s after its
// proxy's clock, or the quota store's, was set back: however long the longest window is.
func TestTheClockIsSetBack(t *testing.T) {
	for _, scope := range []string{"proxy", "cluster"} {
		for _, backMs := range []int{9_000, 300_000, 3_600_000, 100 * 86_400_000} {
			var requests strings.Builder
			for i := range 323 {
				at := 1_700_000_000_000 + i*10
				if i >= 3 {
					at = 1_700_000_000_000 - backMs + i*1000
				}
				fmt.Fprintf(&requests, `{"at_ms":%d,"headers":{"k":"a"}}`+"\n", at)
			}
			policy := "{version: 1, rules: [{name: api, scope: " + scope + ", key: [{header: k}], limits: [20/1s, 100000/1d]}]}"
			out, err := run(t, policy, requests.String(), simulate.Options{Workers: 2})
			require.NoError(t, err)
			require.Equal(t, 323, strings.Count(out, `"status":200`), "scope %s, set back by %d ms", scope, backMs)
		}
	}
}
