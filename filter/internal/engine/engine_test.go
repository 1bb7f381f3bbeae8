package engine

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// operate returns the answer to an operation.
func operate(t *testing.T, e *Engine, op Operation) string {
	t.Helper()
	result, err := e.Operate(op)
	require.NoError(t, err)
	return string(result)
}

// used returns what each window of each rule that matched has counted.
func used(v *decide.Verdict) (counts [][]uint32) {
	for i := range v.Subjects {
		var rule []uint32
		for j := range v.Subjects[i].Rule.Subjects.Order {
			w, u := v.Subjects[i].Window(j)
			rule = append(rule, w.Count(u, v.Subjects[i].Record.Now))
		}
		counts = append(counts, rule)
	}
	return counts
}

func TestLateDenialRefunds(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `
		{"name":"first","limits":["10/1h"]},
		{"name":"second","algorithm":"fixed_window_per_key","limits":["10/1h"]},
		{"name":"third","limits":["2/1h"]}`)
	require.True(t, e.Decide().Allowed)
	// Somebody takes the last unit of the third rule between check and commit.
	other := compileJSON(t, p, `{"name":"third","limits":["2/1h"]}`)
	p.After = func(string) {
		p.After = nil
		require.True(t, other.Decide().Allowed)
	}
	v := e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "third", v.DeniedBy().Name)
	require.Equal(t, [][]uint32{{1}, {1}, {2}}, used(v))
	require.Zero(t, e.rules.List[0].Metrics.NotRefunded)
}

func TestRulesThatShareACounterCountOnceEach(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `
		{"name":"a","counter":"c","limits":["3/1h"]},
		{"name":"b","counter":"c","limits":["4/1h"]}`)
	require.True(t, e.Decide().Allowed)
	v := e.Decide() // 2 used: a takes the third, b the fourth
	require.True(t, v.Allowed)
	v = e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "a", v.DeniedBy().Name)
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, rule, fail string
		steal            int
		allowed          bool
		reason           string
	}{
		{"get fails, default", `{"name":"r","limits":["1/1h"]}`, "get", 0, true, "on_error"},
		{"get fails, deny", `{"name":"r","limits":["1/1h"],"on_error":"deny"}`, "get", 0, false, "on_error"},
		{"set fails, default", `{"name":"r","limits":["1/1h"]}`, "set", 0, true, "on_error"},
		{"set fails, deny", `{"name":"r","limits":["1/1h"],"on_error":"deny"}`, "set", 0, false, "on_error"},
		{"retries suffice", `{"name":"r","limits":["1/1h"]}`, "", retries, true, ""},
		{"retries run out, default", `{"name":"r","limits":["1/1h"]}`, "", retries + 1, false, "on_contention"},
		{"retries run out, allow", `{"name":"r","limits":["1/1h"],"on_contention":"allow"}`, "", retries + 1, true, "on_contention"},
	} {
		p := hosttest.New()
		e := compileJSON(t, p, c.rule)
		p.Fail, p.Steal = c.fail, c.steal
		v := e.Decide()
		require.Equal(t, c.allowed, v.Allowed, c.name)
		require.Equal(t, c.reason, v.Subjects[0].Reason(), c.name)
		if !c.allowed {
			require.Equal(t, int64(1e9), v.RetryNs, c.name)
		}
	}
}

func TestOnFull(t *testing.T) {
	for _, c := range []struct {
		onFull  string
		allowed bool
	}{{"deny", false}, {"allow", true}, {"inherit", true}} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"capacity":1,"limits":["2/1m"],"on_full":"`+c.onFull+`"}`)
		p.With("u", "alice")
		require.True(t, e.Decide().Allowed)
		p.With("u", "bob")
		v := e.Decide()
		require.Equal(t, c.allowed, v.Allowed, c.onFull)
		switch c.onFull {
		case "deny":
			require.Equal(t, "on_full", v.Subjects[0].Reason())
			require.Equal(t, int64(60e9), v.RetryNs)
			require.EqualValues(t, 1, e.rules.List[0].Metrics.Full)
		case "allow":
			require.EqualValues(t, 1, e.rules.List[0].Metrics.Full)
		case "inherit":
			require.EqualValues(t, 1, e.rules.List[0].Metrics.Evicted)
			p.With("u", "alice")
			v = e.Decide() // starts from the floor, which knows one hit
			require.Equal(t, [][]uint32{{2}}, used(v))
		}
	}
}

// A full page denies in the check, as a limit does: the other rules count
// nothing, their wait is part of the answer, and a peek sees it too.
func TestFullPageDeniesBeforeAnythingCounts(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `
		{"name":"all","limits":["2/10s"]},
		{"name":"each","key":[{"header":"u"}],"capacity":1,"limits":["9/1m"],"on_full":"deny"}`)
	p.With("u", "alice")
	require.True(t, e.Decide().Allowed)
	p.With("u", "bob")
	before := maps.Clone(p.Store)
	v := e.Decide()
	require.Equal(t, "each", v.DeniedBy().Name)
	require.Equal(t, "on_full", v.Subjects[1].Reason())
	require.Equal(t, before, p.Store)

	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "each", Key: []string{"bob"}, N: 1}),
		`{"allowed":false,"denied_by":"each","retry_after_ns":60000000000,`)

	p.With("u", "alice")
	require.True(t, e.Decide().Allowed)
	p.With("u", "bob")
	v = e.Decide()
	require.Equal(t, "all", v.DeniedBy().Name)
	require.Equal(t, int64(60e9), v.RetryNs, "when the limit of 10 s passes, the page is still full")
}

// A hit whose write failed is in no answer.
func TestFailedWriteIsNotReported(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["5/1h"],"on_contention":"allow"}`)
	p.Steal = retries + 1
	v := e.Decide()
	require.Equal(t, "on_contention", v.Subjects[0].Reason())
	require.Contains(t, report(v), `"windows":[]`)
	require.Empty(t, fields(policy.HeadersIETF, v))
}
