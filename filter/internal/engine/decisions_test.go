package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// scenario is rules, and requests with what becomes of them.
type scenario struct {
	name, rules string

	// steps has a line for each request: its headers, and in front of them +1s for a clock that goes
	// on, get or set for a call that fails, steal:2 for two writes that others win, and late:NAME for
	// another worker that has a rule's next unit as soon as this one has counted in another. Behind ->
	// is the word of access logs, what each rule has counted in its windows, the wait, and whether
	// nothing was written.
	steps string

	metrics string // of rules but for allowed and denied, where they are not 0
}

func run(t *testing.T, c scenario) {
	p := hosttest.New()
	e := compileJSON(t, p, c.rules)
	for line := range strings.Lines(strings.TrimSpace(c.steps)) {
		request, want, _ := strings.Cut(strings.TrimSpace(line), "->")
		p.With()
		p.Fail, p.Steal = "", 0
		for _, word := range strings.Fields(request) {
			name, value, isHeader := strings.Cut(word, "=")
			switch _, after, _ := strings.Cut(word, ":"); {
			case isHeader:
				p.Headers[name] = []string{value}
			case word[0] == '+':
				pause, err := time.ParseDuration(word[1:])
				require.NoError(t, err)
				p.Clock += int64(pause)
			case strings.HasPrefix(word, "late:"):
				p.After = func(string) {
					p.After = nil
					operate(t, compileJSON(t, p, c.rules), Operation{Name: "inc", Rule: after, N: 1})
				}
			case strings.HasPrefix(word, "steal:"):
				var err error
				p.Steal, err = strconv.Atoi(after)
				require.NoError(t, err)
			default:
				p.Fail = word
			}
		}
		before := hosttest.Pages(p.Store)
		v := e.Decide()
		got := said(v)
		if maps.EqualFunc(before, hosttest.Pages(p.Store), func(a, b cell) bool { return a.CAS == b.CAS }) {
			got += " unwritten"
		}
		require.Equal(t, strings.TrimSpace(want), got, "%s: %s", c.name, request)
	}
	var metrics []string
	for name, count := range series(e) {
		_, rule, _ := strings.Cut(name, " ")
		if !strings.HasSuffix(rule, " allowed") && !strings.HasSuffix(rule, " denied") {
			metrics = append(metrics, fmt.Sprint(strings.Replace(rule, ": ", " ", 1), " ", count))
		}
	}
	slices.Sort(metrics)
	require.Equal(t, c.metrics, strings.Join(metrics, ", "), c.name)
}

// said is what became of a request.
func said(v *decide.Verdict) string {
	text := string(respond.AppendWord(nil, v))
	for _, s := range v.Subjects {
		text += " "
		if _, known := s.View(); !known {
			text += "?"
			continue
		}
		for j, count := range counted(s) {
			text += strings.Repeat("/", min(j, 1)) + fmt.Sprint(count)
		}
	}
	switch {
	case !v.Allowed && v.RetryNs < 0:
		text += " never"
	case !v.Allowed:
		text += " " + time.Duration(v.RetryNs).String()
	}
	return text
}

const keyed = `"key":[{"header":"u"}]`

// decisions are requests under several rules, also where they meet a full page, a failing proxy or
// another worker.
var decisions = []scenario{
	{
		"a late denial refunds what was counted",
		`{"name":"a","limits":["9/1h"]},{"name":"b","algorithm":"fixed_window_per_key","limits":["9/1h"]},{"name":"c",` +
			`"limits":["2/1h"]}`, `
		-> a=allowed,b=allowed,c=allowed 1 1 1
		late:c -> a=allowed,b=allowed,c=denied:limit 1 1 2 1h0m0s`, "c cas_retries 1",
	},
	{
		"a denial begins a block, which no further one prolongs",
		`{"name":"a","limits":["2/1m"],"block":"1h"}`, `
		-> a=allowed 1
		-> a=allowed 2
		-> a=denied:limit 2 1h0m0s
		+59s -> a=denied:blocked 2 59m1s unwritten
		+59m -> a=denied:blocked 0 1s unwritten
		+1s -> a=allowed 1`, "a blocks_begun 1, a window_resets 2",
	},
	{
		"each denial prolongs a block", `{"name":"a","limits":["1/1m"],"block":{"for":"1h","prolong":true}}`, `
		-> a=allowed 1
		-> a=denied:limit 1 1h0m0s
		+59m -> a=denied:blocked 0 1h0m0s
		+59m -> a=denied:blocked 0 1h0m0s
		+1h -> a=allowed 1`, "a blocks_begun 1, a window_resets 2",
	},
	{
		"a key without a record prolongs no block of others",
		`{"name":"a",` + keyed + `,"capacity":1,"limits":["1/1m"],"block":{"for":"1h","prolong":true}}`, `
		u=x -> a=allowed 1
		u=x -> a=denied:limit 1 1h0m0s
		+1m u=y -> a=allowed 1
		u=z -> a=denied:blocked 0 59m0s unwritten
		+59m u=z -> a=allowed 1`, "a blocks_begun 1, a evicted 1, a floor_denied 1",
	},
	{
		"nor does it if its denial counts, which gives it a record to prolong from then on",
		`{"name":"a",` + keyed + `,"capacity":1,"limits":["1/1m"],"count_denied":true,` +
			`"block":{"for":"1h","prolong":true}}`, `
		u=x -> a=allowed 1
		u=x -> a=denied:limit 2 1h0m0s
		+1m u=y -> a=allowed 1
		u=z -> a=denied:blocked 1 59m0s
		+1m u=w -> a=denied:blocked 1 58m0s
		u=w -> a=denied:blocked 2 1h0m0s
		+1h u=w -> a=allowed 1`, "a blocks_begun 1, a evicted 3, a floor_denied 2, a window_resets 2",
	},
	{
		"a block is shorter than the window", `{"name":"a","limits":["1/1h"],"block":"1m"}`, `
		-> a=allowed 1
		-> a=denied:limit 1 1h0m0s
		+59s -> a=denied:blocked 1 59m1s unwritten
		+1s -> a=denied:limit 1 59m0s`, "a blocks_begun 2, a window_resets 1",
	},
	{
		"a denied hit counts, and begins a block",
		`{"name":"a","limits":["1/1h"],"count_denied":true,"block":"2h"}`, `
		-> a=allowed 1
		-> a=denied:limit 2 2h0m0s
		+1h -> a=denied:blocked 1 1h0m0s`, "a blocks_begun 1, a window_resets 1",
	},
	{
		"another rule's denial begins no block",
		`{"name":"a","limits":["2/1h"],"block":"2h"},{"name":"b","limits":["1/1h"]}`, `
		-> a=allowed,b=allowed 1 1
		-> a=allowed,b=denied:limit 1 1 1h0m0s unwritten
		+1h -> a=allowed,b=allowed 1 1`, "a window_resets 1, b window_resets 1",
	},
	{
		"what is held begins no block, and neither does a failure",
		`{"name":"a","limits":["1/1h"],"settle":{},"block":"2h","on_error":"deny"}`, `
		-> a=allowed 0
		-> a=denied:held 0 1s unwritten
		get -> a=denied:on_error ? 1s unwritten
		-> a=denied:held 0 1s unwritten`, "a errors 1",
	},
	{
		"another worker begins the block first", `{"name":"a","limits":["1/1m"],"block":"1h"}`, `
		-> a=allowed 1
		steal:1 -> a=denied:limit 1 1h0m0s
		-> a=denied:blocked 1 1h0m0s unwritten`, "a blocks_begun 1, a cas_retries 1",
	},
	{
		"a shadow rule blocks in shadow", `{"name":"a","limits":["1/1m"],"block":"1h","mode":"shadow"}`, `
		-> a=shadow_allowed 1
		-> a=shadow_denied:limit 1
		+1m -> a=shadow_denied:blocked 0 unwritten`, "a blocks_begun 1, a shadow_denied 2",
	},
	{
		"rules of one counter share its blocks, but those that begin in shadow block no rule that enforces",
		sharing("4/1h", "2/1h", `,"block":"2h"`, `,"mode":"shadow"`), `
		u=x -> a=allowed,b=shadow_allowed 1 2
		u=x -> a=allowed,b=shadow_denied:limit 3 3
		u=x -> a=allowed,b=shadow_denied:limit 4 4
		u=x -> a=denied:limit,b=shadow_skipped 4 ? 2h0m0s
		+1h u=x -> a=denied:blocked,b=shadow_skipped 0 ? 1h0m0s unwritten`, "a blocks_begun 1, b shadow_denied 2",
	},
	{
		"hits that are counted though a shadow rule denies them count for all rules of the counter, and block none",
		sharing("5/1h", "2/1h", `,"block":"2h","count_denied":true`, `,"mode":"shadow"`), `
		u=x -> a=allowed,b=shadow_allowed 1 2
		u=x -> a=allowed,b=shadow_denied:limit 3 4
		u=x -> a=allowed,b=shadow_denied:limit 5 6
		u=x -> a=denied:limit,b=shadow_skipped 7 ? 2h0m0s`, "a blocks_begun 1, b shadow_denied 2",
	},
	{
		"rules in shadow alone share their blocks",
		sharing("9/1h", "2/1h", `,"block":"2h","mode":"shadow"`), `
		u=x -> a=shadow_allowed,b=shadow_allowed 1 2
		u=x -> a=shadow_allowed,b=shadow_denied:limit 3 3
		u=x -> a=shadow_denied:blocked,b=shadow_denied:blocked 3 3 unwritten`,
		"a shadow_denied 1, b blocks_begun 1, b shadow_denied 2",
	},
	{
		"a blocked key is denied whatever it costs",
		`{"name":"a","limits":["1/1m"],"cost":{"header":"c","min":0},"block":{"for":"1h","prolong":true}}`, `
		c=1 -> a=allowed 1
		c=2 -> a=denied:limit 1 never
		c=0 -> a=denied:blocked 1 1h0m0s unwritten
		c=2 -> a=denied:blocked 1 never`, "a blocks_begun 1",
	},
	{
		"a late denial is counted", `{"name":"a","limits":["9/1h"]},{"name":"b","limits":["2/1h"],"count_denied":true}`, `
		-> a=allowed,b=allowed 1 1
		late:b -> a=allowed,b=denied:limit 1 3 1h0m0s`, "b cas_retries 1",
	},
	{
		"rules that share a counter count once each", `{"name":"a","counter":"c","limits":["3/1h"]},{"name":"b",` +
			`"counter":"c","limits":["4/1h"]}`, `
		-> a=allowed,b=allowed 1 2
		-> a=allowed,b=allowed 3 4
		-> a=denied:limit,b=denied:limit 4 4 1h0m0s unwritten`, "b cas_retries 2",
	},
	{
		"of a shared counter, a denial counts in rules that ask for it", `{"name":"a","counter":"c","limits":["2/1m"],` +
			`"count_denied":true},{"name":"b","counter":"c","limits":["3/1m"]}`, `
		-> a=allowed,b=allowed 1 2
		-> a=denied:limit,b=denied:limit 3 2 1m0s
		-> a=denied:limit,b=denied:limit 4 3 1m0s`, "b cas_retries 1",
	},
	{
		"a shadow rule sees the hit of an enforced one", `{"name":"s","counter":"c","mode":"shadow","limits":["3/1h"]},` +
			`{"name":"r","counter":"c","limits":["4/1h"]}`, `
		-> s=shadow_allowed,r=allowed 2 1
		-> s=shadow_denied:limit,r=allowed 3 3
		-> s=shadow_denied:limit,r=allowed 4 4
		-> s=shadow_skipped,r=denied:limit ? 4 1h0m0s unwritten`, "s shadow_denied 2",
	},
	{"on_full: deny", `{"name":"r",` + keyed + `,"capacity":1,"limits":["2/1m"],"on_full":"deny"}`, `
		u=alice -> r=allowed 1
		u=bob -> r=denied:on_full 0 1m0s unwritten`, "r full 1"},
	{"on_full: allow", `{"name":"r",` + keyed + `,"capacity":1,"limits":["2/1m"],"on_full":"allow"}`, `
		u=alice -> r=allowed 1
		u=bob -> r=allowed:on_full 0 unwritten`, "r full 1"},
	{"on_full: inherit", `{"name":"r",` + keyed + `,"capacity":1,"limits":["2/1m"]}`, `
		u=alice -> r=allowed 1
		u=bob -> r=allowed 1
		u=alice -> r=allowed 2
		u=carol -> r=allowed 2`, "r evicted 3"},
	{
		"a full page denies before anything counts, and its wait is part of the answer",
		`{"name":"all","limits":["2/10s"]},{"name":"each",` + keyed + `,"capacity":1,"limits":["9/1m"],"on_full":"deny"}`, `
		u=alice -> all=allowed,each=allowed 1 1
		u=bob -> all=allowed,each=denied:on_full 1 0 1m0s unwritten
		u=alice -> all=allowed,each=allowed 2 2
		u=bob -> all=denied:limit,each=denied:on_full 2 0 1m0s unwritten`, "each full 2",
	},
	{"a hit whose write failed is in no answer", `{"name":"r","limits":["5/1h"],"on_contention":"allow"}`, `
		steal:257 -> r=allowed:on_contention ? unwritten`, "r cas_retries 256, r contention 1"},
	{
		"denials that count_denied does not count", `{"name":"r",` + keyed + `,"missing_key":"deny","limits":["2/1m"],` +
			`"capacity":1,"on_full":"deny","count_denied":true,"cost":{"header":"c"}}`, `
		-> r=denied:missing_key ? never unwritten
		u=first -> r=allowed 1
		u=second -> r=denied:on_full 0 1m0s unwritten
		u=second c=3 -> r=denied:limit 0 never unwritten
		set u=first c=3 -> r=denied:limit ? never unwritten
		steal:256 u=first c=3 -> r=denied:limit ? never unwritten
		u=first c=3 -> r=denied:limit 4 never`, "r cas_retries 256, r contention 1, r errors 1, r full 2",
	},
	{
		"a shadow rule's failures stay its own",
		`{"name":"full","mode":"shadow","limits":["9/1h"],` + keyed + `,"capacity":1,"on_full":"deny"},` +
			`{"name":"lacks","mode":"shadow","limits":["9/1h"],"key":[{"header":"none"}],"missing_key":"deny"},` +
			`{"name":"never","mode":"shadow","limits":["0/1h"]},{"name":"r","limits":["9/1h"]}`, `
		u=first -> full=shadow_allowed,lacks=shadow_denied:missing_key,never=shadow_denied:limit,r=allowed 1 ? 0 1
		u=second -> full=shadow_denied:on_full,lacks=shadow_denied:missing_key,never=shadow_denied:limit,r=allowed 0 ? 0 2`,
		"full full 1, full shadow_denied 1, lacks shadow_denied 2, never shadow_denied 2",
	},
	{"a key outside enforce_percent is in shadow", `{"name":"r",` + keyed +
		`,"limits":["1/1h"],"enforce_percent":0,"count_denied":true}`, `
		u=a -> r=shadow_allowed 1
		u=a -> r=shadow_denied:limit 2
		u=a -> r=shadow_denied:limit 3`, "r shadow_denied 2"},
	{"a shadow rule that was not asked", `{"name":"shut","limits":["0/1m"]},{"name":"trial","mode":"shadow",` +
		`"limits":["0/1m"]}`, `
		-> shut=denied:limit,trial=shadow_skipped 0 ? never unwritten`, ""},
	{
		"cost 0 takes nothing, and passes where too much is used",
		`{"name":"r",` + keyed + `,"limits":["2/1h"],"count_denied":true,"cost":{"header":"c","min":0},` +
			`"overrides":[{"key":["shut"],"limits":["0/1h"]}]}`, `
		u=a c=0 -> r=allowed 0 unwritten
		u=a c=2 -> r=allowed 2
		u=a c=0 -> r=allowed 2 unwritten
		u=a c=1 -> r=denied:limit 3 1h0m0s
		u=a c=0 -> r=allowed 3 unwritten
		u=shut c=0 -> r=denied:limit 0 never unwritten`, "",
	},
	{"cost 0 passes where all is held", `{"name":"r",` + keyed +
		`,"limits":["2/1h"],"cost":{"header":"c","min":0},"settle":{}}`, `
		u=a c=2 -> r=allowed 0
		u=a c=1 -> r=denied:held 0 1s unwritten
		u=a c=0 -> r=allowed 0 unwritten`, ""},
	{"windows that begin anew", `{"name":"r","limits":["5/10s",{"requests":9,"per":"1m",` +
		`"algorithm":"fixed_window_per_key"}]}`, `
		-> r=allowed 1/1
		+5s -> r=allowed 2/2
		+5s -> r=allowed 1/3
		+10s -> r=allowed 1/4
		+39999ms -> r=allowed 1/5
		+1ms -> r=allowed 1/1`, "r window_resets 5"},
	{"a shadow rule without a retry left", `{"name":"s","mode":"shadow","limits":["9/1h"]},{"name":"r","limits":[]}`, `
		steal:257 -> s=shadow_denied:on_contention,r=allowed ? ? unwritten`,
		"s cas_retries 256, s contention 1, s shadow_denied 1"},
	{"on_error: allow", `{"name":"r","limits":["1/1h"]}`, `
		get -> r=allowed:on_error ? unwritten
		set -> r=allowed:on_error ? unwritten`, "r errors 2"},
	{"on_error: deny", `{"name":"r","limits":["1/1h"],"on_error":"deny"}`, `
		get -> r=denied:on_error ? 1s unwritten
		set -> r=denied:on_error ? 1s unwritten`, "r errors 2"},
	{"on_contention: deny", `{"name":"r","limits":["2/1h"]}`, `
		steal:256 -> r=allowed 1
		steal:257 -> r=denied:on_contention ? 1s unwritten`, "r cas_retries 512, r contention 1"},
}

func TestDecisions(t *testing.T) {
	for _, c := range decisions {
		t.Run(c.name, func(t *testing.T) { run(t, c) })
	}
}

// A request that two rules count in one record needs room for both: where there
// is never so much, no wait helps, and where there is, the wait is for both.
func TestRetryOfRulesThatShareACounter(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		admitted    int
		retryNs     int64
	}{
		{"one unit for two", sharing("1/10s", "1/10s", ``), 0, limit.Never},
		{"two units", sharing("2/10s", "2/10s", ``), 1, 9e9},
		{"one has room", sharing("9/10s", "1/10s", ``), 0, limit.Never},
		{"an odd one left", sharing("3/10s", "3/10s", ``), 1, 9e9},
		{"a log", sharing("3/10s", "3/10s", `,"algorithm":"sliding_window_log"`), 1, 10e9},
		{"denials count", sharing("1/10s", "1/10s", `,"count_denied":true`), 0, limit.Never},
		{"costs", sharing("5/10s", "5/10s", `,"cost":3`), 0, limit.Never},
		{"a shadow rule denies alone", sharing("1/10s", "1/10s", ``, `,"mode":"shadow"`), 1, 9e9},
		{"a counter of its own", strings.Replace(sharing("1/10s", "1/10s", ``), `"counter":"c",`, ``, 1), 1, 9e9},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := hosttest.New()
			p.Clock = 1_001_000_000_000
			e := compileJSON(t, p, c.rules)
			require.Equal(t, c.admitted, admits(p, e, 3, "u", "alice"))
			v := e.Decide()
			require.False(t, v.Allowed)
			require.Equal(t, c.retryNs, v.RetryNs)
			if c.retryNs == limit.Never {
				return
			}
			p.Clock += c.retryNs - 1
			require.Zero(t, admits(p, e, 1, "u", "alice"))
			p.Clock++
			require.Equal(t, 1, admits(p, e, 1, "u", "alice"))
		})
	}
}

// sharing is two rules of one counter, with what follows in both, and what
// comes last in the second alone.
func sharing(a, b, both string, second ...string) string {
	return `{"name":"a","counter":"c","key":[{"header":"u"}],"limits":["` + a + `"]` + both + `},` +
		`{"name":"b","counter":"c","key":[{"header":"u"}],"limits":["` + b + `"]` + both + strings.Join(second, "") + `}`
}

// What a wild clock wrote is moved to the present by the first request that is
// denied, also in the record of a rule that would have let it pass: that
// record's time goes on from there, and the wait that was named holds.
func TestWildClockBesideADenial(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log",
		"sliding_window_counter", "token_bucket"} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"denies","limits":["0/1s"],"mode":"shadow"},
			{"name":"wild","limits":["4/10s"],"algorithm":"`+algorithm+`"},
			{"name":"often","key":[{"header":"u"}],"limits":["1/1s"]}`)
		p.Clock = 1_000_000_000e9
		p.With("u", "a")
		require.True(t, e.Decide().Allowed)
		p.Clock = 500_000_000e9
		p.With("u", "b")
		require.True(t, e.Decide().Allowed)
		p.Clock = 100_000_000e9
		p.With("u", "b") // whose own record is of a wild clock too
		v := e.Decide()
		require.False(t, v.Allowed, algorithm)
		require.Equal(t, "often", v.DeniedBy().Name, algorithm)
		require.Equal(t, int64(1e9), v.RetryNs)
		p.Clock += 1e9 - 1
		again := e.Decide()
		require.EqualValues(t, 1, again.RetryNs, algorithm)
		require.False(t, again.Subjects[1].Record.Rebased, "%s: once is enough", algorithm)
		p.Clock++
		require.True(t, e.Decide().Allowed, algorithm)
	}
}

// TestHeldWaitsASecond: a request that only requests in flight deny is told to wait 1 s. So it is by
// a worker that read the clock a moment before the worker that holds.
func TestHeldWaitsASecond(t *testing.T) {
	for _, rule := range []string{`"algorithm":"concurrency","limits":["1"]`, `"limits":["1/1h"],"settle":{}`} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r",`+rule+`}`)
		require.True(t, e.Decide().Allowed)
		p.Clock--
		v := e.Decide()
		require.False(t, v.Allowed)
		require.Equal(t, limit.HeldRetryNs, v.RetryNs, rule)
		require.Equal(t, "held", v.Subjects[0].Reason())
	}
}

// Debt is paid: an answer that takes more than a limit is paid by the minutes that follow, a limit
// each.
func TestDebtIsPaid(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "fixed_window", "fixed_window_per_key"} {
		p := hosttest.New()
		p.Clock = 1000 * 60e9
		e := compileJSON(t, p, `{"name":"r","algorithm":"`+algorithm+`","limits":["10/1m"],`+
			`"settle":{"to":{"header":"x-cost"}}}`)
		for _, h := range e.Decide().BeginHolds(nil) {
			h.Settle(35, metrics.ByAnswer, p.Clock)
		}
		for _, left := range []uint32{35, 25, 15, 5} {
			require.Equal(t, [][]uint32{{left}}, used(e.Peek()), algorithm)
			p.Clock += 60e9
		}
		require.True(t, e.Decide().Allowed)
	}
}
