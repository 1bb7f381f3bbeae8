package policydiff_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	second = int64(1_000_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// valid reads rules that must be valid.
func valid(t *testing.T, domain, rules string) *policy.Policy {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"domain":"` + domain + `","rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems)
	return p
}

func TestBetween(t *testing.T) {
	const a = `{"name":"a","key":["host"],"limits":["10/1s","9/1m"]}`
	c := func(fields string) string { return strings.TrimSuffix(a, "}") + `,"scope":"cluster"` + fields + "}" }
	tests := []struct {
		name, before, after string
		want                []string
	}{
		{"nothing", a, a, []string{`counter "a": kept`}},
		{"windows in another order", a, `{"name":"a","key":["host"],"limits":["9/1m","10/1s"]}`, []string{`counter "a": kept`}},
		{"limits, match, cost, mode, percent and overrides", a,
			`{"name":"a","match":{"methods":["GET"]},"key":["host"],"limits":["1/1s","0/1m"],"overrides":[{"key":["x"],"limits":["5/1s"]}],"cost":2,"count_denied":true,"enforce_percent":5,"missing_key":"deny","on_full":"deny","on_error":"deny","on_contention":"allow"}`,
			[]string{`counter "a": kept`}},
		{"off and on again", a, `{"name":"a","key":["host"],"limits":["10/1s","9/1m"],"mode":"off"}`, []string{`counter "a": kept`}},
		{"capacity", a, `{"name":"a","key":["host"],"limits":["10/1s","9/1m"],"capacity":1024}`,
			[]string{`counter "a": capacity 65536 → 1024: its counters restart`}},
		{"key", a, `{"name":"a","key":["method"],"limits":["10/1s","9/1m"]}`, []string{`counter "a": its key has other parts: its counters restart`}},
		{"key and capacity", a, `{"name":"a","limits":["10/1s"],"capacity":1}`,
			[]string{`counter "a": its key has other parts, capacity 65536 → 1: its counters restart`}},
		{"the same key in other words", `{"name":"a","key":["client_ip"],"limits":["10/1s"]}`,
			`{"name":"a","key":[{"client_ip":{"v4_prefix":32}}],"limits":["10/1s"]}`, []string{`counter "a": kept`}},
		{"rename", a, `{"name":"b","counter":"a","key":["host"],"limits":["10/1s","9/1m"]}`, []string{`counter "a": kept`}},
		{"replaced by something else", a, `{"name":"b","limits":["1/1s"]}`, []string{
			`counter "b": is new and starts empty`, `counter "a": no rule has it any more: its counters vanish`,
		}},
		{"windows", a, `{"name":"a","key":["host"],"limits":["10/1s",{"requests":9,"per":"1m","offset":"1s"},{"requests":9,"per":"1m","jitter":10}]}`, []string{
			`counter "a": kept; fixed_window of 1m with offset 1s is new and starts empty; fixed_window of 1m with jitter 10% is new and starts empty; fixed_window of 1m is dropped`,
		}},
		{"months", `{"name":"a","limits":["9/30d","1/month"]}`, `{"name":"a","limits":["5/month",{"requests":9,"per":"6 months","utc_offset":"+05:30"},{"requests":9,"per":"year","offset":"14d","utc_offset":"-00:00"}]}`, []string{
			`counter "a": kept; fixed_window of 6 months with utc_offset +05:30 is new and starts empty; fixed_window of year with offset 2w is new and starts empty; fixed_window of 30d is dropped`,
		}},
		{"algorithm", `{"name":"a","limits":["1/1s"],"algorithm":"token_bucket"}`, `{"name":"a","limits":["1/1s"],"algorithm":"sliding_window_log"}`, []string{
			`counter "a": kept; sliding_window_log of 1s is new and starts empty; token_bucket of 1s is dropped`,
		}},
		{"elastic", `{"name":"a","limits":[{"requests":1,"per":"1s","elastic":true}],"algorithm":"fixed_window_per_key"}`, `{"name":"a","limits":["1/1s"],"algorithm":"fixed_window_per_key"}`, []string{
			`counter "a": kept; fixed_window_per_key of 1s is new and starts empty; fixed_window_per_key of 1s with elastic is dropped`,
		}},
		{"rate and burst", `{"name":"a","limits":["1/1s"],"algorithm":"token_bucket"}`, `{"name":"a","limits":[{"requests":2,"per":"1s","burst":9}],"algorithm":"token_bucket"}`, []string{`counter "a": kept`}},
		{"longer log", `{"name":"a","limits":["1/1s"],"algorithm":"sliding_window_log"}`, `{"name":"a","limits":["500/1s"],"algorithm":"sliding_window_log"}`, []string{`counter "a": kept`}},
		{"another rule of the counter", a, a + `,{"name":"b","counter":"a","key":["host"],"limits":["10/1m","9/1s"]}`, []string{`counter "a": kept`}},
		{"scope", a, c(``), []string{`counter "a": scope proxy → cluster: its counters restart`}},
		{"scope back", c(``), a, []string{`counter "a": scope cluster → proxy: its counters restart`}},
		{"scope, key and capacity", a, `{"name":"a","scope":"cluster","limits":["10/1s"],"capacity":1}`,
			[]string{`counter "a": scope proxy → cluster, its key has other parts: its counters restart`}},
		{"lease, on_unavailable and capacity of a cluster", c(``), c(`,"lease":"off","on_unavailable":"deny","capacity":9`),
			[]string{`counter "a": kept`}},
		{"key of a cluster", c(``), strings.Replace(c(``), "host", "method", 1),
			[]string{`counter "a": its key has other parts: its counters restart`}},
		{"window of a cluster", c(``), strings.Replace(c(``), "1m", "1h", 1), []string{
			`counter "a": kept; fixed_window of 1h is new and starts empty; fixed_window of 1m is dropped`,
		}},
		{"no limits", a, `{"name":"a","key":["host"],"limits":[]}`, []string{`counter "a": no rule has it any more: its counters vanish`}},
		{"none before", ``, a, []string{`counter "a": is new and starts empty`}},
		{"none at all", ``, ``, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changes := policydiff.Between(valid(t, "d", tt.before), valid(t, "d", tt.after))
			var got []string
			for i := range changes {
				got = append(got, changes[i].Text)
				require.Equal(t, changes[i].Text == `counter "`+changes[i].Counter+`": kept`, changes[i].Keeps)
			}
			require.Equal(t, tt.want, got)
		})
	}

	changes := policydiff.Between(valid(t, "d", a+`,{"name":"b","limits":["1/1s"]}`), valid(t, "e", a+`,{"name":"c","limits":["1/1s"]}`))
	require.Equal(t, []policydiff.Change{
		{Counter: "a", Fate: policydiff.Restarted, Why: `domain "d" → "e"`, Text: `counter "a": domain "d" → "e": its counters restart`},
		{Counter: "c", Fate: policydiff.New, Text: `counter "c": is new and starts empty`},
		{Counter: "b", Fate: policydiff.Vanished, Text: `counter "b": no rule has it any more: its counters vanish`},
	}, changes)

	changes = policydiff.Between(nil, valid(t, "d", a))
	require.Equal(t, policydiff.New, changes[0].Fate)

	changes = policydiff.Between(valid(t, "d", `{"name":"a","limits":["3/1h","1/1s"]}`), valid(t, "d", `{"name":"a","limits":["2/1m","7/1s"]}`))
	window := func(n uint32, per int64) limit.Window {
		return limit.Window{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: per}
	}
	require.Equal(t, []policydiff.WindowChange{
		{Per: "1m", Window: window(2, minute), Fate: policydiff.New},
		{Per: "1s", Window: window(7, second), Fate: policydiff.Kept},
		{Per: "1h", Window: window(3, hour), Fate: policydiff.Dropped},
	}, changes[0].Windows)
	require.False(t, changes[0].Keeps)
}
