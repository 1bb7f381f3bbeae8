package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

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
