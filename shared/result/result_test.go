package result_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

func to[T any](v T) *T { return &v }

// readsBack decodes what was appended, strictly, and compares.
func readsBack[T any](t *testing.T, want T, text []byte) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	var got T
	require.NoError(t, decoder.Decode(&got), "%s", text)
	require.Equal(t, want, got, "%s", text)
}

var windows = []result.Window{
	{Name: "daily\n", Limit: to(uint32(10)), PerNs: 86_400e9, Used: 10, Remaining: to(uint32(0)), ResetNs: 5},
	{Limit: to(uint32(0)), PerNs: 1, Remaining: to(uint32(0))},
	{Unlimited: true, PerNs: 1e9, Months: 3, Used: 7},
	{Limit: to(uint32(100)), Requests: to(uint32(120)), PerNs: 60e9, Used: 1, Remaining: to(uint32(99)), ResetNs: 5e8},
}

func TestVerdict(t *testing.T) {
	a := result.Result{
		Allowed: to(false), DeniedBy: `a "rule"`, RetryNs: to(int64(-1)),
		Rules: []result.Rule{
			{Rule: `a "rule"`, Key: []*string{to("alice"), nil, to("")}, Mode: "enforced", Reason: "limit",
				Remaining: to(uint32(0)), Windows: windows},
			{Rule: "b", Key: []*string{}, Mode: "shadow", Allowed: true, Windows: []result.Window{}},
		},
	}
	readsBack(t, a, a.Append(nil))
	//nolint:testifylint // byte for byte
	require.Equal(t, `{"allowed":false,"denied_by":"a \"rule\"","retry_after_ns":-1,"rules":[`+
		`{"rule":"a \"rule\"","key":["alice",null,""],"mode":"enforced","allowed":false,"reason":"limit",`+
		`"remaining":0,"windows":[`+
		`{"name":"daily\n","limit":10,"per_ns":86400000000000,"used":10,"remaining":0,"reset_ns":5},`+
		`{"limit":0,"per_ns":1,"used":0,"remaining":0,"reset_ns":0},`+
		`{"unlimited":true,"per_ns":1000000000,"months":3,"used":7,"reset_ns":0},`+
		`{"limit":100,"requests":120,"per_ns":60000000000,"used":1,"remaining":99,"reset_ns":500000000}]},`+
		`{"rule":"b","key":[],"mode":"shadow","allowed":true,"windows":[]}]}`, string(a.Append(nil)))

	allowed := result.Result{Allowed: to(true), Rules: []result.Rule{}}
	readsBack(t, allowed, allowed.Append(nil))
}

func TestValue(t *testing.T) {
	for want, a := range map[string]result.Result{
		`{"value":-3}`:                             {Value: to(int64(-3))},
		`{"value":0,"windows":[]}`:                 {Value: to(int64(0)), Windows: []result.Window{}},
		`{"value":0,"silent":"deny","windows":[]}`: {Value: to(int64(0)), Silent: "deny", Windows: []result.Window{}},
		`{"value":1,"windows":[{"unlimited":true,"per_ns":1,"used":2,"reset_ns":3}]}`: {
			Value: to(int64(1)), Windows: []result.Window{{Unlimited: true, PerNs: 1, Used: 2, ResetNs: 3}},
		},
	} {
		require.Equal(t, want, string(a.Append(nil)))
		readsBack(t, a, a.Append(nil))
	}
}

func TestStats(t *testing.T) {
	type stats struct {
		Rules    []result.Stats `json:"rules"`
		VMStarts uint64         `json:"vm_starts"`
	}
	want := stats{VMStarts: 7, Rules: []result.Stats{
		{
			Rule: "r", Keys: 1, Capacity: 2, Slots: 3, Pages: 4, Bytes: 1 << 63,
			Metrics: map[string]uint64{"denied": 5, "allowed": 6},
		},
		{Rule: `"`, Metrics: map[string]uint64{}},
	}}
	text := result.AppendStats(nil, want.Rules, [][]result.Metric{{{"denied", 5}, {"allowed", 6}}, nil}, want.VMStarts)
	//nolint:testifylint // byte for byte
	require.Equal(t, `{"rules":[{"rule":"r","keys":1,"capacity":2,"slots":3,"buckets":4,"bytes":9223372036854775808,`+
		`"metrics":{"denied":5,"allowed":6}},`+
		`{"rule":"\"","keys":0,"capacity":0,"slots":0,"buckets":0,"bytes":0,"metrics":{}}],"vm_starts":7}`, string(text))
	readsBack(t, want, text)
	//nolint:testifylint // byte for byte
	require.Equal(t, `{"rules":[],"vm_starts":0}`, string(result.AppendStats(nil, nil, nil, 0)))
}

func TestDenials(t *testing.T) {
	type denials struct {
		Rules []result.Denials `json:"rules"`
	}
	want := denials{[]result.Denials{
		{
			Rule: `a "rule"`, Mode: "shadow", Blocks: true, SinceNs: 5, Rest: 3,
			Keys: []result.DeniedKey{
				{Key: []*string{to("ali\"ce"), nil, to("")}, Cut: true, Denied: 7, Error: 1 << 31},
				{Key: []*string{}, Denied: 1},
				{Hash: "9f86d081884c7d65", Denied: 5, Error: 2},
			},
		},
		{Rule: "b", Keys: []result.DeniedKey{}},
	}}
	text := result.AppendDenials(nil, want.Rules)
	readsBack(t, want, text)
	//nolint:testifylint // byte for byte
	require.Equal(t, `{"rules":[{"rule":"a \"rule\"","mode":"shadow","blocks":true,"since_ns":5,"keys":[`+
		`{"key":["ali\"ce",null,""],"cut":true,"denied":7,"error":2147483648},`+
		`{"key":[],"denied":1,"error":0},{"hash":"9f86d081884c7d65","denied":5,"error":2}],"rest":3},`+
		`{"rule":"b","keys":[],"rest":0}]}`, string(text))
	require.Equal(t, `{"rules":[]}`, string(result.AppendDenials(nil, nil))) //nolint:testifylint // byte for byte
}

func TestExplanation(t *testing.T) {
	x := result.Explanation{
		Allowed: to(false), DeniedBy: "r", RetryNs: to(int64(5)),
		Rules: []result.ExplainedRule{
			{
				Rule: "r", Outcome: result.Matches, Cost: to(uint32(0)), CostUnreadable: true, TooLong: true, Unlimited: true,
				Mode: "enforced", Allowed: to(false), Reason: "limit",
				Key: []result.KeyPart{{Part: "header a", Value: to("")}, {Part: "path", Missing: true},
					{Part: "cookie c", Hidden: true}},
				Override: &result.Override{Index: 0, Key: []string{"gold-*", `"`}}, Windows: windows,
			},
			{Rule: "s", Outcome: "no_match", Why: "methods: POST is not one of GET, HEAD",
				Failing: "methods", Wanted: "GET, HEAD"},
			{Rule: "u", Outcome: result.Matches, Key: []result.KeyPart{}, Cost: to(uint32(1)), Mode: "shadow",
				Allowed: to(true), Windows: []result.Window{}},
		},
	}
	text := x.Append(nil)
	readsBack(t, x, text)
	require.True(t, strings.HasPrefix(string(text),
		`{"allowed":false,"denied_by":"r","retry_after_ns":5,"rules":[{"rule":"r","outcome":"matches",`+
			`"key":[{"part":"header a","value":""},{"part":"path","missing":true},{"part":"cookie c","hidden":true}],`+
			`"cost":0,"cost_unreadable":true,"too_long":true,"override":{"index":0,"key":["gold-*","\""]},`+
			`"unlimited":true,"mode":"enforced","allowed":false,"reason":"limit","windows":[`), "%s", text)
	require.True(t, strings.HasSuffix(string(text),
		`},{"rule":"s","outcome":"no_match","why":"methods: POST is not one of GET, HEAD",`+
			`"failing":"methods","wanted":"GET, HEAD"},`+
			`{"rule":"u","outcome":"matches","key":[],"cost":1,"mode":"shadow","allowed":true,"windows":[]}]}`), "%s", text)
}

func TestPendingExplanation(t *testing.T) {
	x := result.Explanation{Pending: true, Rules: []result.ExplainedRule{{
		Rule: "r", Outcome: result.Matches, Key: []result.KeyPart{}, Cost: to(uint32(1)), Mode: "enforced", Pending: true,
		Lease: &result.Lease{}, Windows: windows,
	}, {
		Rule: "s", Outcome: result.Matches, Key: []result.KeyPart{}, Cost: to(uint32(1)), Mode: "enforced", Allowed: to(true),
		Lease: &result.Lease{Units: 3, EndsNs: 5, Silent: "local"}, Windows: windows,
	}}}
	text := x.Append(nil)
	readsBack(t, x, text)
	require.Contains(t, string(text), `{"pending":true,"rules":[{`)
	require.Contains(t, string(text), `"mode":"enforced","pending":true,"lease":{"units":0},"windows":[`)
	require.Contains(t, string(text), `"allowed":true,"lease":{"units":3,"ends_ns":5,"silent":"local"},"windows":[`)
}

// TestEveryFieldOfAnExplainedRuleIsWritten: of a rule that has them all.
func TestEveryFieldOfAnExplainedRuleIsWritten(t *testing.T) {
	var r result.ExplainedRule
	fields := reflect.ValueOf(&r).Elem()
	for i := range fields.NumField() {
		f := fields.Field(i)
		switch f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.String:
			f.SetString("x")
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Int64:
			f.SetInt(1)
		default:
			t.Fatalf("set %s", fields.Type().Field(i).Name)
		}
	}
	r.Outcome = result.Matches // a rule that is pending is not allowed yet
	decided := r
	decided.Pending = false
	x := result.Explanation{Rules: []result.ExplainedRule{r, decided}}
	var read struct{ Rules []map[string]any }
	require.NoError(t, json.Unmarshal(x.Append(nil), &read))
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
		if strings.HasSuffix(name, "_ms") {
			continue // the filter gives nanoseconds
		}
		require.True(t, read.Rules[0][name] != nil || read.Rules[1][name] != nil, name)
	}
}

func TestTimes(t *testing.T) {
	for times, want := range map[result.Times]string{
		result.Ns: `{"per_ns":1000001`, result.Ms: `{"per_ms":2`, result.Ms | result.Ns: `{"per_ms":2,"per_ns":1000001`,
	} {
		require.Equal(t, want, string(result.AppendTime([]byte{'{'}, "per", 1_000_001, times)))
	}
	var rounded []int64
	for _, ns := range []int64{-1, 0, 1, 1e6, 1e6 + 1, 1<<63 - 1} {
		rounded = append(rounded, result.Milliseconds(ns))
	}
	require.True(t, slices.Equal([]int64{-1, 0, 1, 1, 2, 9_223_372_036_855}, rounded), "%v", rounded)
}

// The page says what each reason means that access logs have.
func TestEachReasonIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Access logs\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, reason := range append(result.DenialReasons(), result.ReasonNotAsked) {
		require.Regexp(t, "`(allowed:)?"+reason+"`", section)
	}
}
