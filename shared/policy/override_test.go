package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// wellFormed checks what everyone who reads a policy relies on.
func wellFormed(t *testing.T, p *policy.Policy) {
	t.Helper()
	units := map[string]uint16{} // of each counter's logs
	for i := range p.Rules {
		r := &p.Rules[i]
		require.LessOrEqual(t, r.EnforcePercent, uint8(100))
		require.Equal(t, r.Holds(), r.HoldNs > 0)
		require.True(t, r.MaxHoldNs == 0 || r.Holds() && r.MaxHoldNs >= r.HoldNs)
		require.True(t, r.LingerNs == 0 || r.Concurrency())
		if r.Settle != nil {
			require.Positive(t, r.Settle.Max)
			require.Less(t, len(r.Limits), policy.MaxWindows)
			require.False(t, r.Concurrency())
		}
		for j, w := range r.Windows() {
			fits(t, w)
			require.False(t, w.Unlimited)
			require.False(t, r.CountDenied && (r.Holds() || w.Algorithm == limit.TokenBucket))
			require.Equal(t, r.Concurrency(), w.Algorithm == limit.Concurrency)
			require.True(t, !r.Concurrency() || w.PeriodNs == r.HoldNs)
			if w.Algorithm == limit.SlidingWindowLog {
				id := fmt.Sprint(r.Counter, " ", w.PeriodNs)
				if known, found := units[id]; found {
					require.Equal(t, known, w.Units)
				}
				units[id] = w.Units
			}
			for k := range j {
				require.False(t, w.Same(r.Limits[k].Window))
			}
		}
		for j := range r.Overrides {
			o := &r.Overrides[j]
			require.Len(t, o.Key, len(r.Key))
			if o.Unlimited {
				require.Empty(t, o.Limits)
				continue
			}
			require.Len(t, o.Limits, len(r.Limits))
			for k, w := range o.Windows() {
				fits(t, w)
				require.True(t, w.Same(r.Limits[k].Window))
				require.Equal(t, r.Limits[k].Units, w.Units)
				require.Equal(t, r.Limits[k].Name, o.Limits[k].Name)
			}
		}
	}
}

func fits(t *testing.T, w limit.Window) {
	t.Helper()
	is := func(a limit.Algorithm) bool { return w.Algorithm == a }
	require.True(t, w.InRange())
	require.True(t, w.OffsetNs == 0 || is(limit.FixedWindow) || is(limit.Calendar))
	require.True(t, w.Jitter == 0 || is(limit.FixedWindow) && w.Jitter <= 100)
	require.True(t, !w.Elastic || is(limit.FixedWindowPerKey))
	require.True(t, w.Burst == 0 || is(limit.TokenBucket))
	require.True(t, w.Burst > 0 || !is(limit.TokenBucket) || w.Limit == 0)
	require.True(t, w.Units == 0 || is(limit.SlidingWindowLog))
	require.True(t, !is(limit.SlidingWindowLog) || w.Limit <= uint32(w.Units) && w.Units <= limit.MaxLog)
}

// A log remembers as much as any key of any rule of its counter may use.
func TestUnits(t *testing.T) {
	p := valid(t, "d", `{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s","0/1m"],"overrides":[{"key":["a"],"limits":["9/1s"]},{"key":["b"],"limits":["3/1m"]}]},
		{"name":"b","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s"]},
		{"name":"c","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["2/1s"],"overrides":[{"key":["a"],"limits":["512/1s"]}]},
		{"name":"d","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["6/1s"],"overrides":[{"key":["a"],"limits":["7/1s"]}]},
		{"name":"e","counter":"e","algorithm":"sliding_window_log","limits":["5/1s","0/1m"],"mode":"off"},
		{"name":"f","counter":"e","algorithm":"sliding_window_log","limits":["70/1m","0/1s"]}`)
	want := map[string][]uint16{"a": {9, 3}, "b": {512}, "c": {512}, "d": {512}, "e": {5, 70}, "f": {70, 5}}
	for i := range p.Rules {
		r := &p.Rules[i]
		var got []uint16
		for _, w := range r.Windows() {
			got = append(got, w.Units)
		}
		require.Equal(t, want[r.Name], got, r.Name)
	}
	wellFormed(t, p)
}

// valid reads rules that must be valid.
func valid(t *testing.T, domain, rules string) *policy.Policy {
	t.Helper()
	p, errs := policy.Read(parse(t, `{"version":1,"domain":"`+domain+`","rules":[`+rules+`]}`))
	require.Empty(t, messages(errs))
	return p
}
