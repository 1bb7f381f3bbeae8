package lease_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Whatever times a broken service states, no wait and no reset is longer than the rule's
// windows can take, also as the denial is remembered.
func TestStatedTimesAreBounded(t *testing.T) {
	for rule, most := range map[string]int64{
		`"limits":["10/1m"]`:                                                          60_000 * ms,
		`"limits":["10/1m","50/1h"]`:                                                  3_600_000 * ms,
		`"algorithm":"sliding_window_log","limits":["10/1m"]`:                         60_600 * ms,
		`"algorithm":"sliding_window_counter","limits":["10/1m"]`:                     120_000 * ms,
		`"limits":[{"requests":10,"per":"1m","burst":20,"algorithm":"token_bucket"}]`: 241_200 * ms,
	} {
		for _, stated := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 61, limit.MaxPeriodNs, 1, 0, -2, math.MinInt64} {
			w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],`+rule+`}`)
			w.request("a")
			windows := []quota.Standing{{Used: 10, ResetNs: stated}, {Used: 10, ResetNs: stated}}
			m := quota.Grants{Proxies: math.MaxUint32, Results: []quota.AskResult{{
				ID: w.lastID, Result: quota.Denied, Grants: []quota.Grant{{Denied: true, WaitNs: stated, ValidNs: stated, Windows: windows}},
			}}}
			check := func(v *decide.Verdict) bool {
				if v.Pending { // it is not remembered
					return false
				}
				require.False(t, v.Allowed)
				require.Positive(t, v.RetryNs, "%s: %d", rule, stated)
				require.LessOrEqual(t, v.RetryNs, most, "%s: %d", rule, stated)
				window, usage := v.Subjects[0].Window(0)
				require.LessOrEqual(t, window.Reset(usage, v.Now)-v.Now, most, "%s: %d", rule, stated)
				return true
			}
			w.onResume = func(v *decide.Verdict) { require.True(t, check(v)) }
			w.receive(m.Append(nil))
			w.proxy.Clock += 500 * ms
			w.proxy.Headers = map[string][]string{"u": {"a"}}
			require.Equal(t, stated > second, check(w.engine.Decide()), "remembered")
		}
	}
}

// A debt is paid in many windows: its wait is told as it is, up to the longest window of a policy.
func TestStatedDebts(t *testing.T) {
	for stated, told := range map[int64]int64{
		480_000 * ms: 480_000 * ms, limit.MaxPeriodNs + 1: limit.MaxPeriodNs, math.MaxInt64: limit.MaxPeriodNs,
	} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"settle":{},"limits":["10/1m"]}`)
		w.request("a")
		windows := []quota.Standing{{Used: 80, ResetNs: stated}, {}}
		m := quota.Grants{Results: []quota.AskResult{{
			ID: w.lastID, Result: quota.Denied,
			Grants: []quota.Grant{{Denied: true, Noted: true, WaitNs: stated, Windows: windows}},
		}}}
		resumed := false
		w.onResume = func(v *decide.Verdict) {
			resumed = true
			require.Equal(t, told, v.RetryNs)
		}
		w.receive(m.Append(nil))
		require.True(t, resumed)
	}
}
