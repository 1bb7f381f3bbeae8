package lease_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// brokenTimes are what a broken service may answer.
var brokenTimes = []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 61, limit.MaxPeriodNs, 1, 0, -2, math.MinInt64}

// Whatever times a broken service answers, no wait and no reset is longer than the rule's
// windows can take, also as the denial is remembered.
func TestTimesOfABrokenServiceAreBounded(t *testing.T) {
	for rule, most := range map[string]int64{
		`"limits":["10/1m"]`:                                                          60_000 * ms,
		`"limits":["10/1m","50/1h"]`:                                                  3_600_000 * ms,
		`"algorithm":"sliding_window_log","limits":["10/1m"]`:                         60_600 * ms,
		`"algorithm":"sliding_window_counter","limits":["10/1m"]`:                     120_000 * ms,
		`"limits":[{"requests":10,"per":"1m","burst":20,"algorithm":"token_bucket"}]`: 241_200 * ms,
	} {
		for _, answered := range brokenTimes {
			w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],`+rule+`}`)
			w.request("a")
			windows := []quota.Standing{{Used: 10, ResetNs: answered}, {Used: 10, ResetNs: answered}}
			m := quota.Results{Proxies: math.MaxUint32, Results: []quota.AskResult{{
				ID: w.lastID, Outcome: quota.Denied,
				Grants: []quota.Grant{{Denied: true, WaitNs: answered, ValidNs: answered, Windows: windows}},
			}}}
			check := func(v *decide.Verdict) bool {
				if v.Pending { // it is not remembered
					return false
				}
				require.False(t, v.Allowed)
				require.Positive(t, v.RetryNs, "%s: %d", rule, answered)
				require.LessOrEqual(t, v.RetryNs, most, "%s: %d", rule, answered)
				view, known := v.Subjects[0].View()
				require.True(t, known)
				window, usage := view.Window(0)
				require.LessOrEqual(t, window.Reset(usage, v.Now)-v.Now, most, "%s: %d", rule, answered)
				return true
			}
			w.onResume = func(v *decide.Verdict) { require.True(t, check(v)) }
			w.receive(m.Append(nil))
			w.proxy.Clock += 500 * ms
			w.proxy.Headers = map[string][]string{"u": {"a"}}
			require.Equal(t, answered > second, check(w.engine.Decide()), "remembered")
		}
	}
}

// TestWindowsAreTheServicesWord: how a key stands is told as the service has said it, whatever this proxy's clock says.
func TestWindowsAreTheServicesWord(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 5))
	for _, rule := range []string{
		`"limits":["10/1m"]`, `"limits":["10/1m"],"algorithm":"fixed_window_per_key"`,
		`"limits":["10/1m"],"algorithm":"sliding_window_log"`, `"limits":["10/1m"],"algorithm":"sliding_window_counter"`,
		`"limits":["10/1m"],"algorithm":"token_bucket"`, `"limits":["10/1m"],"settle":{}`,
	} {
		for range 50 {
			w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],`+rule+`}`)
			w.proxy.Clock += dice.Int64N(60 * second)
			w.request("a")
			said := quota.Standing{Used: 1 + dice.Uint32N(12), ResetNs: 1 + dice.Int64N(60*second)}
			held := quota.Standing{Used: dice.Uint32N(3)}
			m := quota.Results{Results: []quota.AskResult{{ID: w.lastID, Outcome: quota.Denied, Grants: []quota.Grant{{
				Denied: true, Noted: true, WaitNs: second, Windows: []quota.Standing{said, held},
			}}}}}
			told := []result.Window{}
			w.onResume = func(v *decide.Verdict) { told = respond.Windows(v.Subjects[0], v.Now) }
			w.receive(m.Append(nil))
			require.Len(t, told, 1)
			left := 10 - min(10, said.Used)
			if strings.Contains(rule, "settle") {
				left -= min(left, held.Used)
			}
			got := quota.Standing{Used: told[0].Used, ResetNs: told[0].ResetNs}
			require.Equal(t, said, got, rule)
			require.Equal(t, left, *told[0].Remaining, rule)
		}
	}
}

// A debt is paid in many windows: its wait is told as it is, up to the longest window of a policy.
func TestAWaitForADebtIsToldAsItIs(t *testing.T) {
	for answered, told := range map[int64]int64{
		480_000 * ms: 480_000 * ms, limit.MaxPeriodNs + 1: limit.MaxPeriodNs, math.MaxInt64: limit.MaxPeriodNs,
	} {
		w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"settle":{},"limits":["10/1m"]}`)
		w.request("a")
		windows := []quota.Standing{{Used: 80, ResetNs: answered}, {}}
		m := quota.Results{Results: []quota.AskResult{{
			ID: w.lastID, Outcome: quota.Denied,
			Grants: []quota.Grant{{Denied: true, Noted: true, WaitNs: answered, Windows: windows}},
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
