package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
)

// Each operation on each algorithm, at 21.5 s with windows of 10 s: the value
// that it answers, and what get and expires_at say after it.
func TestOperations(t *testing.T) {
	const now = int64(21_500_000_000)
	type want struct{ value, used, expiresMs int64 }
	for _, c := range []struct {
		algorithm, more string
		fresh           int64           // what expires_at says of a key that has used nothing
		hits            int64           // and of one that has hit twice, 2 s ago
		ops             map[string]want // then
	}{
		{"fixed_window", `,"offset":"4s"`, 24000, 24000, map[string]want{
			"get": {2, 2, 24000}, "inc": {5, 5, 24000}, "set": {3, 3, 24000}, "reset": {1, 0, 24000}}},
		{"fixed_window_per_key", ``, 0, 29500, map[string]want{
			"get": {2, 2, 29500}, "inc": {5, 5, 29500}, "set": {3, 3, 31500}, "reset": {1, 0, 0}}},
		{"fixed_window_per_key", `,"elastic":true`, 0, 29500, map[string]want{
			"get": {2, 2, 29500}, "inc": {5, 5, 31500}, "set": {3, 3, 31500}, "reset": {1, 0, 0}}},
		{"sliding_window_log", ``, 0, 29500, map[string]want{
			"get": {2, 2, 29500}, "inc": {5, 5, 31500}, "set": {3, 3, 31500}, "reset": {1, 0, 0}}},
		{"sliding_window_counter", ``, 30000, 30000, map[string]want{ // the hits are in the bucket before
			"get": {1, 1, 30000}, "inc": {4, 4, 40000}, "set": {3, 3, 40000}, "reset": {1, 0, 30000}}},
		{"token_bucket", `,"burst":10`, 0, 23500, map[string]want{ // half a token a second
			"get": {1, 1, 23500}, "inc": {4, 4, 29500}, "set": {3, 3, 27500}, "reset": {1, 0, 0}}},
	} {
		for name, want := range c.ops {
			t.Run(c.algorithm+c.more+" "+name, func(t *testing.T) {
				p := hosttest.New()
				p.Clock = now
				e := compileJSON(t, p, fmt.Sprintf(`{"name":"r","key":[{"header":"u"}],"limits":[{"requests":5,"per":"10s","algorithm":%q%s}]}`, c.algorithm, c.more))
				p.With("u", "alice")
				op := func(name string) int64 {
					var value int64
					_, err := fmt.Sscanf(operate(t, e, Operation{Name: name, Rule: "r", Key: []string{"alice"}, N: 3}), `{"value":%d,`, &value)
					require.NoError(t, err)
					return value
				}
				require.Zero(t, op("get"))
				require.Equal(t, c.fresh*1e6, op("expires_at"))
				require.Zero(t, op("reset"), "nothing to forget")
				p.Clock -= 2e9
				e.Decide()
				e.Decide()
				p.Clock += 2e9
				require.Equal(t, c.hits*1e6, op("expires_at"))
				require.Equal(t, want.value, op(name))
				require.Equal(t, want.used, op("get"))
				require.Equal(t, want.expiresMs*1e6, op("expires_at"))
			})
		}
	}
}

// inc and set do not ask the limit, a bucket goes into debt, and a set of 0 is
// a key that has used nothing.
func TestOperationsBeyondTheLimit(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		inc, set  uint32
		waitMs    int64 // after set 7
	}{
		{"fixed_window", 9, 7, 8500},
		{"fixed_window_per_key", 9, 7, 10000},
		{"sliding_window_log", 2, 2, 10000}, // it remembers no more than the limit
		{"sliding_window_counter", 9, 7, 8500 + 7143},
		{"token_bucket", 9, 7, 30000},
	} {
		p := hosttest.New()
		p.Clock = 21_500_000_000
		e := compileJSON(t, p, fmt.Sprintf(`{"name":"r","limits":[{"requests":2,"per":"10s"}],"algorithm":%q}`, c.algorithm))
		op := func(name string, n uint32) string {
			return operate(t, e, Operation{Name: name, Rule: "r", N: n})
		}
		require.Contains(t, op("inc", 9), fmt.Sprintf(`{"value":%d,`, c.inc), c.algorithm)
		require.Contains(t, op("set", 7), fmt.Sprintf(`{"value":%d,`, c.set), c.algorithm)
		v := e.Decide()
		require.False(t, v.Allowed, c.algorithm)
		require.Equal(t, c.waitMs, ceilDiv(v.RetryNs, 1e6), c.algorithm)
		require.Contains(t, op("set", 0), `{"value":0,`, c.algorithm)
		require.Equal(t, 2, admits(p, e, 3), c.algorithm)
	}
}

// The value of a layered rule is that of the window with least left, and a
// window may be named or numbered.
func TestOperationsOnLayeredRules(t *testing.T) {
	const rule = `{"name":"r","limits":["4/10s",{"requests":9,"per":"1h","name":"hourly","algorithm":"sliding_window_log"},
		{"requests":6,"per":"1m","name":"bucket","algorithm":"token_bucket"}]}`
	for _, c := range []struct {
		op     string
		n      uint32
		window string
		want   string // value, then used of each window
	}{
		{"get", 0, "", "2 [2 2 2]"},
		{"inc", 1, "", "3 [3 3 3]"},
		{"inc", 6, "hourly", "8 [2 8 2]"},
		{"inc", 6, "1", "8 [2 8 2]"},
		{"inc", 1, "0", "3 [3 2 2]"},
		{"set", 1, "hourly", "1 [2 1 2]"}, // which is not the tightest
		{"inc", 1, "bucket", "3 [2 2 3]"},
		{"inc", 4, "bucket", "6 [2 2 6]"},
		{"set", 5, "2", "5 [2 2 5]"},
		{"set", 1, "", "1 [1 1 1]"},
		{"set", 0, "0", "0 [0 2 2]"}, // of equals the first
		{"reset", 0, "", "1 [0 0 0]"},
	} {
		p := hosttest.New()
		p.Clock = 21_500_000_000
		e := compileJSON(t, p, rule)
		require.Equal(t, 2, admits(p, e, 2))
		answer := operate(t, e, Operation{Name: c.op, Rule: "r", N: c.n, Window: c.window})
		var value, a, b, d int64
		words := strings.FieldsFunc(answer, func(r rune) bool { return (r < '0' || r > '9') && r != '-' })
		require.NotEmpty(t, words)
		_, err := fmt.Sscan(words[0], &value)
		require.NoError(t, err)
		for i, used := range strings.Split(answer, `"used":`)[1:] {
			_, err := fmt.Sscanf(used, "%d,", []*int64{&a, &b, &d}[i])
			require.NoError(t, err)
		}
		require.Equal(t, c.want, fmt.Sprintf("%d [%d %d %d]", value, a, b, d), "%v: %s", c, answer)
		require.Equal(t, strings.Index(answer, `"windows":[{"limit":4,`)+len(`"windows":[`), strings.Index(answer, `{"limit":4,`))
		require.Contains(t, answer, `{"name":"hourly","limit":9,"per_ns":3600000000000,`)
	}
	p := hosttest.New()
	e := compileJSON(t, p, rule)
	for _, window := range []string{"3", "-1", "daily", "00"} {
		_, err := e.Operate(Operation{Name: "set", Rule: "r", Window: window})
		require.EqualError(t, err, fmt.Sprintf("rule %q has no window %q", "r", window))
	}
}

// reset forgets a key also where the page's floor would not.
func TestResetWithAndWithoutAFloor(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"} {
		p := hosttest.New()
		p.Clock = 21_500_000_000
		e := compileJSON(t, p, fmt.Sprintf(`{"name":"r","key":[{"header":"u"}],"limits":["3/10s"],"capacity":1,"algorithm":%q}`, algorithm))
		key := func(name, key string) string {
			return operate(t, e, Operation{Name: name, Rule: "r", Key: []string{key}, N: 1})[:len(`{"value":0`)]
		}
		require.Equal(t, 3, admits(p, e, 4, "u", "a"))
		require.Equal(t, `{"value":1`, key("reset", "a"))
		require.Equal(t, `{"value":0`, key("reset", "a"), "it is gone")
		require.Equal(t, 3, admits(p, e, 4, "u", "a"), algorithm)

		require.True(t, e.Decide().Matched())
		p.With("u", "b")
		require.True(t, e.Decide().Allowed, "%s: b has used nothing, and evicts a", algorithm)
		require.EqualValues(t, 1, e.rules[0].Metrics.Evicted)
		require.Zero(t, admits(p, e, 1, "u", "a"), "%s: a starts from the floor", algorithm)
		require.EqualValues(t, 1, e.rules[0].Metrics.FloorDenied)
		require.Equal(t, `{"value":0`, key("reset", "a"), "it had no record")
		require.Equal(t, `{"value":0`, key("get", "a"))
		require.Equal(t, 3, admits(p, e, 4, "u", "a"), "%s: the floor is not for it any more", algorithm)
	}
}

// A refund leaves alone what was set or reset since: the record has another
// generation by then.
func TestRefundAfterSetAndReset(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"} {
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
			require.Equal(t, c.left, e.rules[0].Metrics.NotRefunded, "%s %s", algorithm, c.op.Name)
		}
	}
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
	require.Contains(t, operate(t, e, Operation{Name: "stats"}), `{"rules":[{"rule":"r","keys":20,"capacity":100,"slots":`)
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "s"}), `{"rules":[{"rule":"s","keys":20,"capacity":100,"slots":`)
	p.Counters = map[string]uint64{"r allowed": 44, "r denied": 3}
	require.Contains(t, operate(t, e, Operation{Name: "stats", Rule: "r"}), `"metrics":{"allowed":44,"denied":3,"shadow_denied":0,`)
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
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["3/10s"],"capacity":1,"on_full":"deny"},{"name":"off","mode":"off","limits":["1/1s"]}`)
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

// hit and peek of an operation are decided as a request's.
func TestHitAndPeek(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"} {
		p := hosttest.New()
		e := compileJSON(t, p, fmt.Sprintf(`{"name":"r","key":[{"header":"u"}],"limits":["3/10s"],"algorithm":%q}`, algorithm))
		ask := func(name string, n uint32) string {
			return operate(t, e, Operation{Name: name, Rule: "r", Key: []string{"a"}, N: n})
		}
		require.Contains(t, ask("peek", 3), `"allowed":true,"remaining":3,`)
		require.Contains(t, ask("hit", 2), `"allowed":true,"remaining":1,`)
		require.Contains(t, ask("hit", 2), `{"allowed":false,"denied_by":"r"`)
		require.Contains(t, ask("peek", 1), `"allowed":true,"remaining":1,`)
		require.Contains(t, ask("hit", 0), `"allowed":true,"remaining":1,`)
		require.Contains(t, ask("peek", 4), `"retry_after_ns":-1,`)
		require.Equal(t, 1, admits(p, e, 2, "u", "a"), algorithm)
	}
}
