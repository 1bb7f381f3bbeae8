package engine

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// An operation gives a key its own record, and on a full page evicts another key's for it. A reset does so, too: the
// key might start from the floor of its page, and the record says that it does not. If another worker writes in
// between, the operation tries again, and only the try that stored something is counted.
func TestWhatAnOperationStoresIsCounted(t *testing.T) {
	for _, op := range []string{"inc", "set", "reset"} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"capacity":1,"limits":["4/1h"]}`)
		for _, user := range []string{"a", "b"} {
			require.Equal(t, 4, admits(p, e, 9, "u", user))
		}
		require.Equal(t, [2]uint64{1, 0}, stored(e))
		p.Steal = 1
		operate(t, e, Operation{Name: op, Rule: "r", Key: []string{"a"}, N: 1})
		require.Equal(t, [2]uint64{2, 0}, stored(e), op)
		operate(t, e, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 1})
		p.Clock += 3600e9
		operate(t, e, Operation{Name: op, Rule: "r", Key: []string{"a"}, N: 1})
		require.Equal(t, [2]uint64{2, 1}, stored(e), op)
	}
}

// stored counts what writes of rule r have done: how many records they evicted, and how many windows they began anew.
func stored(e *Engine) [2]uint64 {
	counts := series(e)
	return [2]uint64{counts["default r: evicted"], counts["default r: window_resets"]}
}

// The value of a layered rule is that of the window with least left, and a
// window may be named or numbered.
func TestOperationsOnLayeredRules(t *testing.T) {
	const rule = `{"name":"r","limits":["4/10s",
		{"requests":9,"per":"1h","name":"hourly","algorithm":"sliding_window_log"},
		{"requests":6,"per":"1m","name":"bucket","algorithm":"token_bucket"}]}`
	numbers := regexp.MustCompile(`"(?:value|used)":(\d+)`)
	for _, c := range []struct {
		op     string
		n      uint32
		window string
		want   string // value, then used of each window
	}{
		{"get", 0, "", "2 2 2 2"},
		{"inc", 1, "", "3 3 3 3"},
		{"inc", 6, "hourly", "8 2 8 2"},
		{"inc", 6, "1", "8 2 8 2"},
		{"inc", 1, "0", "3 3 2 2"},
		{"set", 1, "hourly", "1 2 1 2"}, // which is not the tightest
		{"inc", 1, "bucket", "3 2 2 3"},
		{"inc", 4, "bucket", "6 2 2 6"},
		{"set", 5, "2", "5 2 2 5"},
		{"set", 1, "", "1 1 1 1"},
		{"set", 0, "0", "0 0 2 2"}, // of equals the first
		{"reset", 0, "", "1 0 0 0"},
	} {
		p := hosttest.New()
		p.Clock = 21_500_000_000
		e := compileJSON(t, p, rule)
		require.Equal(t, 2, admits(p, e, 2))
		answer := operate(t, e, Operation{Name: c.op, Rule: "r", N: c.n, Window: c.window})
		var got []string
		for _, number := range numbers.FindAllStringSubmatch(answer, -1) {
			got = append(got, number[1])
		}
		require.Equal(t, c.want, strings.Join(got, " "), "%v: %s", c, answer)
		require.Equal(t, strings.Index(answer, `"windows":[{"limit":4,`)+len(`"windows":[`),
			strings.Index(answer, `{"limit":4,`))
		require.Contains(t, answer, `{"name":"hourly","limit":9,"per_ns":3600000000000,`)
	}
	p := hosttest.New()
	e := compileJSON(t, p, rule)
	for _, window := range []string{"3", "-1", "daily", "00"} {
		_, err := e.Operate(Operation{Name: "set", Rule: "r", Window: window})
		require.EqualError(t, err, fmt.Sprintf("rule %q has no window %q", "r", window))
	}
}

// Where no window is named, get and expires_at answer for the one with least left, wherever the policy has it.
func TestAValueIsOfTheTightestWindow(t *testing.T) {
	const start = 21_500_000_000
	for _, c := range []struct {
		limits, window string
		n              uint32
		used, expires  int64 // the values of get and expires_at
	}{
		{`"4/10s","9/1h"`, "0", 0, 0, 30e9}, // an aligned window ends also if it has counted nothing
		{`"4/10s","9/1h"`, "0", 2, 2, 30e9},
		{`"4/10s","9/1h"`, "1", 7, 7, 3600e9},
		{`"9/1h","4/10s"`, "0", 7, 7, 3600e9},
		{`"9/1h","4/10s"`, "1", 2, 2, 30e9},
		{`"4/10s","9/1h",{"requests":6,"per":"1m","algorithm":"token_bucket"}`, "2", 5, 5, start + 50e9}, // when it is full
		{`{"requests":4,"per":"10s","algorithm":"fixed_window_per_key"}`, "0", 0, 0, 0},                  // not begun
		{`{"requests":4,"per":"10s","algorithm":"fixed_window_per_key"}`, "0", 3, 3, start + 10e9},
	} {
		p := hosttest.New()
		p.Clock = start
		e := compileJSON(t, p, `{"name":"r","limits":[`+c.limits+`]}`)
		if c.n > 0 { // else the key has no record
			operate(t, e, Operation{Name: "set", Rule: "r", Window: c.window, N: c.n})
		}
		for name, want := range map[string]int64{"get": c.used, "expires_at": c.expires} {
			answer := operate(t, e, Operation{Name: name, Rule: "r"})
			require.Contains(t, answer, fmt.Sprintf(`{"value":%d,`, want), "%s %v", name, c)
		}
	}
}

// A refund leaves alone what was set or reset since: the record has another
// generation by then.
func TestRefundAfterSetAndReset(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log",
		"sliding_window_counter", "token_bucket"} {
		for _, c := range []struct {
			op   Operation
			used uint32
			left uint64 // charges that stay
		}{
			{Operation{Name: "get"}, 1, 0},
			{Operation{Name: "inc", N: 2}, 3, 0},
			{Operation{Name: "set", N: 3}, 3, 1},
			{Operation{Name: "reset"}, 0, 1},
		} {
			p := hosttest.New()
			p.Clock = 21_500_000_000
			first := fmt.Sprintf(`{"name":"first","limits":["9/10s"],"algorithm":%q}`, algorithm)
			e := compileJSON(t, p, first+`,{"name":"second","limits":["2/1h"]}`)
			require.True(t, e.Decide().Allowed)
			other := compileJSON(t, p, first)
			rival := compileJSON(t, p, `{"name":"second","limits":["2/1h"]}`)
			p.After = func(string) { // the first rule has counted the hit
				p.After = nil
				c.op.Rule = "first"
				operate(t, other, c.op)
				require.True(t, rival.Decide().Allowed)
			}
			v := e.Decide()
			require.Equal(t, "second", v.DeniedBy().Name)
			require.Equal(t, [][]uint32{{c.used}, {2}}, used(e.Decide()), "%s %s", algorithm, c.op.Name)
			require.Equal(t, c.left, e.rules.List[0].Metrics.NotTakenBack, "%s %s", algorithm, c.op.Name)
		}
	}
}

// A later configuration has no holds in the table of a counter, so it charges the units of an earlier one's request at
// once. A refund has to give these back, too.
func TestRefundOfAHoldThatWasChargedAtOnce(t *testing.T) {
	const first, second = `{"name":"first","limits":["9/10s"]%s}`, `,{"name":"second","limits":["2/1h"]}`
	p := hosttest.New()
	p.Clock = 21_500_000_000
	e := compileJSON(t, p, fmt.Sprintf(first, `,"settle":{}`)+second)
	e.Decide().Release()
	later := Identity{Owner: 1, ConfiguredNs: p.Clock, Random: func(b []byte) { clear(b) }}
	next := New(hosttest.Policy(t, fmt.Sprintf(first, "")), p, later)
	operate(t, next, Operation{Name: "set", Rule: "first", N: 3})
	rival := compileJSON(t, p, second[1:])
	p.After = func(string) { // the first rule has counted the hit
		p.After = nil
		require.True(t, rival.Decide().Allowed)
	}
	v := e.Decide()
	require.Equal(t, "second", v.DeniedBy().Name)
	require.Contains(t, operate(t, next, Operation{Name: "get", Rule: "first"}), `{"value":3,`)
	require.Zero(t, e.rules.List[0].Metrics.NotTakenBack)
}

func TestCleanAndStats(t *testing.T) {
	p := hosttest.New()
	p.Clock = 20_000_000_000
	e := compileJSON(t, p, `
		{"name":"r","key":[{"header":"u"}],"limits":["3/10s"],"capacity":100},
		{"name":"s","key":[{"header":"u"}],"limits":["3/1h"],"capacity":100},
		{"name":"none","limits":[]}`)
	require.Equal(t, `{"value":0}`, operate(t, e, Operation{Name: "clean"}))
	for i := range 20 {
		require.Equal(t, 1, admits(p, e, 1, "u", fmt.Sprint(i)))
	}
	require.Equal(t, 2, admits(p, e, 3, "u", "0"))
	require.Contains(t, operate(t, e, Operation{Name: "stats"}),
		`{"rules":[{"rule":"r","keys":20,"capacity":100,"slots":`)
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "s"}),
		`{"rules":[{"rule":"s","keys":20,"capacity":100,"slots":`)
	p.Counters = map[string]uint64{"r allowed": 44, "r denied": 3}
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "r"}),
		`"metrics":{"allowed":44,"denied":3,"shadow_denied":0,`)
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "none"}), `{"rule":"none","keys":0,`)
	p.Clock += 10e9
	require.Equal(t, 1, admits(p, e, 1, "u", "1"))
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "r"}), `"keys":1,`)
	require.Equal(t, `{"value":0}`, operate(t, e, Operation{Name: "clean", Rule: "s"}))
	require.Equal(t, `{"value":19}`, operate(t, e, Operation{Name: "clean", Rule: "r"}))
	require.Equal(t, `{"value":0}`, operate(t, e, Operation{Name: "clean"}), "all are clean")
	p.Clock += 3600e9
	require.Equal(t, `{"value":21}`, operate(t, e, Operation{Name: "clean"}))
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "s"}), `"keys":0,`)
}

func TestOperationsRefused(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["3/10s"],"capacity":1,"on_full":"deny"},`+
		`{"name":"off","mode":"off","limits":["1/1s"]}`)
	for _, c := range []struct {
		op   Operation
		want string
	}{
		{Operation{Name: "steal"}, `unknown operation "steal"`},
		{Operation{Name: ""}, `unknown operation ""`},
		{Operation{Name: "get", Rule: "s"}, `there is no rule "s"`},
		{Operation{Name: "get", Rule: "off", Key: []string{}}, `there is no rule "off"`},
		{Operation{Name: "clean", Rule: "s"}, `there is no rule "s"`},
		{Operation{Name: "stats", Rule: "s"}, `there is no rule "s"`},
		{Operation{Name: "get", Rule: "r"}, `the key of rule "r" has 1 part, not 0`},
	} {
		_, err := e.Operate(c.op)
		require.EqualError(t, err, c.want)
	}
	require.Equal(t, 1, admits(p, e, 1, "u", "a"))
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1}),
		`{"allowed":false,"denied_by":"r","retry_after_ns":10000000000,`)
	for _, name := range []string{"inc", "set"} {
		_, err := e.Operate(Operation{Name: name, Rule: "r", Key: []string{"b"}, N: 1})
		require.EqualError(t, err, "the page of this key is full, and on_full does not evict")
	}
	for _, fail := range []string{"get", "set"} {
		p.Fail = fail
		_, err := e.Operate(Operation{Name: "inc", Rule: "r", Key: []string{"a"}, N: 1})
		require.ErrorIs(t, err, local.ErrStore)
	}
	p.Fail, p.Steal = "", retries
	_, err := e.Operate(Operation{Name: "inc", Rule: "r", Key: []string{"a"}, N: 1})
	require.ErrorIs(t, err, local.ErrStore)
	p.Steal = retries - 1
	require.Contains(t, operate(t, e, Operation{Name: "inc", Rule: "r", Key: []string{"a"}, N: 1}), `{"value":2,`)
}

// topOf denies requests under a policy that reports keys so, and returns what top says.
func topOf(t *testing.T, report policy.ReportKeys, rules string, headers ...string) (string, error) {
	t.Helper()
	host, p := hosttest.New(), hosttest.Policy(t, rules)
	p.ReportKeys = report
	e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	host.Clock = 5e9
	host.With(headers...)
	for range 3 {
		e.Decide()
	}
	result, err := e.Operate(Operation{Name: "top"})
	if err != nil {
		return "", err
	}
	return string(result), nil
}

func TestTop(t *testing.T) {
	const limit, two = `,"limits":["1/1h"]}`, `{"name":"r","key":[{"header":"u"},{"header":"v"}],"missing_key":"share"`
	long := strings.Repeat("x", 60)
	for _, tc := range []struct {
		name, rules string
		headers     []string
		want        string
	}{
		{"a key", `{"name":"r","key":[{"header":"u"}]` + limit, []string{"u", "alice"},
			`{"key":["alice"],"denied":2,"error":0}`},
		{"in shadow", `{"name":"r","mode":"shadow","key":[{"header":"u"}]` + limit, []string{"u", "alice"},
			`{"key":["alice"],"denied":2,"error":0}`},
		{"no key", `{"name":"r"` + limit, nil, `{"key":[],"denied":2,"error":0}`},
		{"a missing part", two + limit, []string{"u", "alice"}, `{"key":["alice",null],"denied":2,"error":0}`},
		{"empty parts", two + limit, []string{"u", "", "v", ""}, `{"key":["",""],"denied":2,"error":0}`},
		{"a part cut", two + limit, []string{"u", "a", "v", long}, `{"key":["a","` + long[:44] +
			`"],"cut":true,"denied":2,"error":0}`},
		{"a part left out", two + limit, []string{"u", long[:46], "v", "b"}, `{"key":["` + long[:46] +
			`"],"cut":true,"denied":2,"error":0}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := topOf(t, policy.ReportPlain, tc.rules, tc.headers...)
			require.NoError(t, err)
			mode := "enforced"
			if tc.name == "in shadow" {
				mode = "shadow"
			}
			require.JSONEq(t, `{"rules":[{"rule":"r","mode":"`+mode+`","since_ns":5000000000,"keys":[`+tc.want+`],`+
				`"rest":0}]}`, got)
		})
	}
}

func TestTopHidesKeys(t *testing.T) {
	for _, tc := range []struct {
		report      policy.ReportKeys
		key, header string
	}{
		{policy.ReportHash, `{"header":"u"}`, "u"},
		{policy.ReportPlain, `{"header":"authorization"}`, "authorization"},
		{policy.ReportPlain, `{"cookie":"c"}`, "cookie"},
		{policy.ReportPlain, `{"header":"x-api-key"}`, "x-api-key"},
		{policy.ReportPlain, `{"query":"token"}`, ":path"},
		{policy.ReportPlain, `{"property":["request","headers","authorization"]}`, "authorization"},
		{policy.ReportPlain, `{"first_of":[{"header":"u"},{"cookie":"c"}]}`, "u"},
	} {
		got, err := topOf(t, tc.report, `{"name":"r","key":[`+tc.key+`],"limits":["1/1h"]}`, tc.header,
			"/?token=alice; c=alice")
		require.NoError(t, err)
		require.Regexp(t, `"keys":\[\{"hash":"[0-9a-f]{16}","denied":2,"error":0\}\]`, got)
		require.NotContains(t, got, "alice")
	}
	_, err := topOf(t, policy.ReportOff, `{"name":"r","limits":["1/1h"]}`)
	require.EqualError(t, err, "the policy's report_keys is off: no keys are kept")
}

// A reset takes away what a running request holds of the key. So its answer is charged and counted as what it costs,
// also if it costs less than was held, and whether or not a renewal comes between.
func TestAHoldOfAResetKeyIsChargedItsCost(t *testing.T) {
	const rule = `{"name":"r","limits":["10/1h"],"cost":5,"hold":"80s",` +
		`"settle":{"to":"price","prices":[{"model":"*","input":1,"output":1}]}}`
	for _, renews := range []bool{true, false} {
		p := hosttest.New()
		p.Clock = 1000 * 3600e9
		e := compileJSON(t, p, rule)
		held := e.Decide().BeginHolds(nil)
		require.Len(t, held, 1)
		operate(t, e, Operation{Name: "reset", Rule: "r"})
		for range 11 { // in steps: a longer one is a proxy that stands still
			p.Clock += 1e9
			e.HeldNow()
		}
		if renews {
			held[0].Renew(hold.Clocks{Now: p.Clock, MonotonicNs: p.Clock, HeldNs: e.HeldNow()})
			require.EqualValues(t, 1, held[0].Rule.Metrics.HoldsLost)
		}
		held[0].Settle(2, metrics.ByAnswer, p.Clock)
		require.Equal(t, [][]uint32{{2}}, used(e.Peek()))
		require.EqualValues(t, 2, held[0].Rule.Metrics.Priced.ChargedUnits)
	}
}
