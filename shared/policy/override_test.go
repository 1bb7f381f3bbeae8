package policy_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// layeredKey is the key of the rules of counter "layers" in full.json.
var layeredKey = []policy.KeyPart{{Kind: policy.KeyHost}, {Kind: policy.KeyHeader, Name: "x-plan"}}

// layeredLimits are the limits of rule "layers" in full.json; the log remembers
// 7 units because the other rule of the counter allows as many.
func layeredLimits() []policy.Limit {
	return []policy.Limit{
		{Window: limit.Window{Algorithm: limit.TokenBucket, Limit: 10, PeriodNs: second, Burst: 10}},
		{Name: "minutes", Window: limit.Window{Algorithm: limit.TokenBucket, Limit: 20, PeriodNs: minute, Burst: 30}},
		{Window: limit.Window{Algorithm: limit.TokenBucket, PeriodNs: hour}},
		{Window: limit.Window{Algorithm: limit.SlidingWindowLog, Limit: 5, PeriodNs: second, Units: 7}},
		{Window: limit.Window{Algorithm: limit.SlidingWindowCounter, Limit: 40, PeriodNs: second}},
		{Window: limit.Window{Algorithm: limit.FixedWindow, Limit: 50, PeriodNs: day, OffsetNs: 4 * hour, Jitter: 25}},
		{Window: limit.Window{Algorithm: limit.FixedWindow, Limit: 60, PeriodNs: day, Jitter: 100}},
		{Window: limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: 70, PeriodNs: day}},
		{Window: limit.Window{
			Algorithm: limit.Calendar, Limit: 80, PeriodNs: 3 * limit.MonthNs, OffsetNs: 14*day + 5*hour + limit.EastNs,
		}},
	}
}

// overridden is the limits with all windows unlimited but those given.
func overridden(limits []policy.Limit, set map[int]limit.Window) []policy.Limit {
	for i := range limits {
		limits[i].Unlimited = true
		if w, found := set[i]; found {
			limits[i].Window = w
		}
	}
	return limits
}

func layers() policy.Rule {
	return policy.Rule{
		Name: "layers", Counter: "layers", Key: layeredKey, MissingKey: policy.MissingShare,
		Limits: layeredLimits(),
		Overrides: []policy.Override{
			{Key: []policy.Pattern{{Kind: policy.Suffix, Text: ".gold.example"}, {Kind: policy.Any}}, Unlimited: true},
			{
				Key: []policy.Pattern{{Kind: policy.Exact, Text: "*"}, expression("Pro|team")},
				Limits: overridden(layeredLimits(), map[int]limit.Window{
					1: {Algorithm: limit.TokenBucket, Limit: 8, PeriodNs: minute, Burst: 8},
					3: {Algorithm: limit.SlidingWindowLog, Limit: 6, PeriodNs: second, Units: 7},
					5: {Algorithm: limit.FixedWindow, Limit: 7, PeriodNs: day, OffsetNs: 4 * hour, Jitter: 25},
					8: {Algorithm: limit.Calendar, Limit: 9, PeriodNs: 3 * limit.MonthNs, OffsetNs: 14*day + 5*hour + limit.EastNs},
				}),
			},
			{
				Key: []policy.Pattern{{Kind: policy.Prefix, Text: "api"}, {Kind: policy.Exact, Text: "!x"}},
				Limits: overridden(layeredLimits(), map[int]limit.Window{
					0: {Algorithm: limit.TokenBucket, Limit: 9, PeriodNs: second, Burst: 90},
				}),
			},
		},
		Cost: policy.Cost{Fixed: 1}, Mode: policy.ModeEnforce, EnforcePercent: 25, Capacity: 65536,
		OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
	}
}

func more() policy.Rule {
	l := layeredLimits()
	l[1].Name, l[1].Burst, l[3].Limit = "", 20, 7
	l[0], l[1], l[2], l[3] = l[3], l[0], l[1], l[2]
	return policy.Rule{
		Name: "more", Counter: "layers", Key: layeredKey, MissingKey: policy.MissingShare, Limits: l,
		Cost: policy.Cost{Fixed: 1}, Mode: policy.ModeShadow, EnforcePercent: 100, Capacity: 65536,
		OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
	}
}

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

func TestFullIsWellFormed(t *testing.T) {
	data, err := os.ReadFile("testdata/full.json")
	require.NoError(t, err)
	p, errs := policy.Read(parse(t, string(data)))
	require.Empty(t, messages(errs))
	wellFormed(t, p)
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
