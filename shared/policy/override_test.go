package policy_test

import (
	"fmt"
	"os"
	"strings"
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
		for j, w := range r.Windows() {
			fits(t, w)
			require.False(t, w.Unlimited)
			require.False(t, r.CountDenied && w.Algorithm == limit.TokenBucket)
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
	_ = p.Memory()
	for _, c := range policy.Restarts(p, p) {
		require.True(t, c.Keeps())
	}
}

func fits(t *testing.T, w limit.Window) {
	t.Helper()
	is := func(a limit.Algorithm) bool { return w.Algorithm == a }
	require.True(t, w.PeriodNs >= limit.MinPeriodNs && w.PeriodNs <= limit.MaxPeriodNs)
	require.True(t, w.OffsetNs == 0 || is(limit.FixedWindow) && w.OffsetNs < w.PeriodNs)
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
	p, errs, _ := policy.Read(parse(t, string(data)))
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

func TestUnreachableOverrides(t *testing.T) {
	tests := []struct {
		first, second string
		covered       bool
	}{
		{`"a"`, `"a"`, true},
		{`"a"`, `"=a"`, true},
		{`"a"`, `"b"`, false},
		{`"a"`, `"a*"`, false},
		{`"a"`, `"~a"`, false},
		{`"*"`, `"a"`, true},
		{`"*"`, `"~a"`, true},
		{`"*"`, `"*"`, true},
		{`"a*"`, `"*"`, false},
		{`"a*"`, `"a"`, true},
		{`"a*"`, `"ab*"`, true},
		{`"ab*"`, `"a*"`, false},
		{`"ab*"`, `"a"`, false},
		{`"a*"`, `"*a"`, false},
		{`"a*"`, `"~a.*"`, false},
		{`"*a"`, `"ba"`, true},
		{`"*a"`, `"*ba"`, true},
		{`"*ba"`, `"*a"`, false},
		{`"*a"`, `"a*"`, false},
		{`"~a|b"`, `"~a|b"`, true},
		{`"~a|b"`, `"a"`, false},
		{`"=*"`, `"a"`, false},
		{`"a"`, `"A"`, true},           // hosts are lower case
		{`"a","b"`, `"a","B"`, false},  // headers are as they are
		{`"a*","*"`, `"ab","x"`, true}, // every part must be covered
		{`"a*","b"`, `"ab","*"`, false},
	}
	for _, tt := range tests {
		t.Run(tt.first+" before "+tt.second, func(t *testing.T) {
			key := `"host"`
			if strings.Contains(tt.first, ",") {
				key += `,{"header":"x"}`
			}
			_, errs, warnings := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","key":[`+key+`],"limits":["1/1s"],"overrides":[
				{"key":[`+tt.first+`],"unlimited":true},{"key":[`+tt.second+`],"limits":["5/1s"]}]}]}`))
			require.Empty(t, messages(errs))
			var want []string
			if tt.covered {
				want = []string{`rules[0].overrides[1]: can never match: rules[0].overrides[0] comes first and matches every key that it does`}
			}
			require.Equal(t, want, messages(warnings))
		})
	}
}

// An exact pattern that is no address as keys have it would never match.
func TestOverrideOfAddress(t *testing.T) {
	const never = `rules[0].overrides[0].key[0]: never matches: the address is in keys as `
	tests := []struct{ part, pattern, want string }{
		{`{}`, "192.0.2.7", ""},
		{`{}`, "2001:db8::/64", ""},
		{`{}`, "192.0.2.*", ""},
		{`{}`, "~192[.].*", ""},
		{`{}`, "*", ""},
		{`{}`, "192.0.2.7/32", never + `"192.0.2.7"`},
		{`{}`, "10.0.0.0/8", never + `"10.0.0.0"`},
		{`{}`, "2001:DB8::1", never + `"2001:db8::/64"`},
		{`{}`, "::ffff:192.0.2.7", never + `"192.0.2.7"`},
		{`{}`, "gold", `rules[0].overrides[0].key[0]: never matches: "gold" is no address`},
		{`{"v4_prefix":24,"v6_prefix":128}`, "192.0.2.0/24", ""},
		{`{"v4_prefix":24,"v6_prefix":128}`, "192.0.2.7", never + `"192.0.2.0/24"`},
		{`{"v4_prefix":24,"v6_prefix":128}`, "2001:db8::1", ""},
	}
	for _, tt := range tests {
		_, errs, warnings := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","key":[{"client_ip":`+tt.part+`}],"limits":["1/1s"],"overrides":[{"key":["`+tt.pattern+`"],"unlimited":true}]}]}`))
		require.Empty(t, messages(errs))
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		require.Equal(t, want, messages(warnings), tt.pattern)
	}
}

func TestOverrideBounds(t *testing.T) {
	list := func(n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"key":["k%d"],"unlimited":true}`, i))
		}
		return `{"version":1,"rules":[{"name":"a","key":["host"],"limits":["1/1s"],"overrides":[` + strings.Join(items, ",") + `]}]}`
	}
	p, errs, warnings := policy.Read(parse(t, list(policy.MaxOverrides)))
	require.Empty(t, messages(errs))
	require.Empty(t, messages(warnings))
	require.Len(t, p.Rules[0].Overrides, policy.MaxOverrides)
	_, errs, _ = policy.Read(parse(t, list(policy.MaxOverrides+1)))
	require.Equal(t, []string{"rules[0].overrides: has 1001 overrides, the most is 1000"}, messages(errs))
}

// The most memory is told for what the records of an algorithm take, at the
// largest limit any key has.
func TestMemoryOfAlgorithms(t *testing.T) {
	bytes := func(rules string) uint64 { return valid(t, "d", rules).Memory().Bytes }
	fixed := bytes(`{"name":"a","key":["host"],"limits":["9/1s"]}`)
	short := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log"}`)
	long := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log","overrides":[{"key":["a"],"limits":["512/1s"]}]}`)
	shared := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log"},{"name":"b","counter":"a","key":["host"],"limits":["512/1s"],"algorithm":"sliding_window_log","mode":"off"}`)
	require.Greater(t, short, fixed)
	require.Greater(t, long, 65536*512*7*uint64(1))
	require.Equal(t, long, shared)
	require.Equal(t, fixed, bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"overrides":[{"key":["a"],"limits":["4294967295/1s"]}]}`))
}
