package ratelimitconfig_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

// descriptor is one with these keys and values in turn.
func descriptor(texts ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i+1 < len(texts); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: texts[i], Value: texts[i+1]})
	}
	return d
}

func compile(t *testing.T, text string) *ratelimitconfig.Set {
	t.Helper()
	c, err := read(t, text)
	require.NoError(t, err)
	return ratelimitconfig.Compile([]*ratelimitconfig.Config{c})
}

const library = `
domain: library
descriptors:
  - {key: reader, value: guest, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: reader, value: "staff-*-night", rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: reader, value: "staff-*", rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: reader, rate_limit: {unit: hour, requests_per_unit: 4}}
  - key: shelf
    value: "a*"
    share_threshold: true
    descriptors:
      - {key: book, rate_limit: {unit: day, requests_per_unit: 5}}
      - {key: book, value: rare, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 6}}
  - key: branch
    value_to_metric: true
    descriptors:
      - {key: door, value: "in*", value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 7}}
      - {key: door, value: "out*", shadow_mode: true, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 8}}
  - {key: desk, detailed_metric: true, metadata: {floor: 2}, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: press, rate_limit: {unlimited: true, replaces: [{name: other}]}}
  - {key: a_b, rate_limit: {unit: week, requests_per_unit: 10}}
  - {key: "w*", rate_limit: {unit: month, requests_per_unit: 11}}
`

var matches = []struct {
	name     string
	entries  []string
	requests uint32 // 0 = no limit
	metric   string
}{
	{"key and value", []string{"reader", "guest"}, 1, "library.reader_guest"},
	{"the first pattern in the file", []string{"reader", "staff-7-night"}, 2, "library.reader_staff-*-night"},
	{"the parts of a pattern do not overlap", []string{"reader", "staff-night"}, 3, "library.reader_staff-*"},
	{"a * may stand for nothing", []string{"reader", "staff-"}, 3, "library.reader_staff-*"},
	{"the key alone", []string{"reader", "x"}, 4, "library.reader"},
	{"an empty value", []string{"reader", ""}, 4, "library.reader"},
	{"no such key", []string{"nobody", "x"}, 0, ""},
	{"no entries", nil, 0, ""},
	{"more entries than levels", []string{"reader", "guest", "a", "b"}, 0, ""},
	{"a node without a limit", []string{"shelf", "a1"}, 0, ""},
	{"below a shared pattern", []string{"shelf", "a1", "book", "x"}, 5, "library.shelf_a*.book"},
	{"no way back from a branch taken", []string{"shelf", "b", "book", "x"}, 0, ""},
	{"detailed below a shared pattern", []string{"shelf", "a1", "book", "rare"}, 6, "library.shelf_a*.book_rare"},
	{"values above and in a pattern", []string{"branch", "north", "door", "in-1"}, 7, "library.branch_north.door_in-1"},
	{"values above a pattern", []string{"branch", "north", "door", "out-1"}, 8, "library.branch_north.door_out*"},
	{"an empty value in a metric", []string{"branch", "", "door", "out-1"}, 8, "library.branch.door_out*"},
	{"detailed", []string{"desk", "4"}, 9, "library.desk_4"},
	{"detailed without a value", []string{"desk", ""}, 9, "library.desk_"},
	{"a key with the value in it", []string{"a", "b"}, 10, "library.a_b"},
	{"a * in the key fits keys and values", []string{"wing", "x"}, 11, "library.wing_w*"},
}

// An entry leads to its key and value, else to a pattern, else to its key; the limit is where the
// last one ends.
func TestMatchGoesTheWayOfTheService(t *testing.T) {
	set := compile(t, library)
	for _, c := range matches {
		t.Run(c.name, func(t *testing.T) {
			m, ok := set.Match("library", descriptor(c.entries...))
			require.Equal(t, c.requests > 0, ok)
			require.False(t, m.UnknownDomain)
			require.Equal(t, c.metric, m.Metric)
			if ok {
				require.Equal(t, c.requests, m.Limit.Requests)
				require.Equal(t, strings.ToLower(m.Unit.String()), m.Limit.Unit)
			}
		})
	}
}

func TestMatchSaysWhatHoldsBesideTheLimit(t *testing.T) {
	set := compile(t, library)
	m, ok := set.Match("library", descriptor("branch", "n", "door", "out"))
	require.True(t, ok)
	require.True(t, m.Shadow)
	require.True(t, m.Quota)
	m, ok = set.Match("library", descriptor("desk", "4"))
	require.True(t, ok)
	require.Equal(t, map[string]any{"floor": 2.0}, m.Metadata.AsMap())
	m, ok = set.Match("library", descriptor("press", "4"))
	require.True(t, ok)
	require.True(t, m.Limit.Unlimited)
	require.Equal(t, []string{"other"}, m.Limit.Replaces)
	require.Empty(t, m.Key)
	m, ok = set.Match("museum", descriptor("press", "4"))
	require.False(t, ok)
	require.True(t, m.UnknownDomain)
}

// A limit in the descriptor holds in place of any in the configuration, in a domain that is known.
func TestMatchTakesTheLimitOfTheDescriptor(t *testing.T) {
	set := compile(t, library)
	own := descriptor("branch", "n", "door", "out")
	own.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 42, Unit: typev3.RateLimitUnit_DAY}
	m, ok := set.Match("library", own)
	require.True(t, ok)
	require.Equal(t, uint32(42), m.Limit.Windows[0].Limit)
	require.Equal(t, int64(86_400_000_000_000), m.Limit.Windows[0].PeriodNs)
	require.Equal(t, "library.branch_n.door_out", m.Metric)
	require.Equal(t, rlsv3.RateLimitResponse_RateLimit_DAY, m.Unit)
	require.False(t, m.Shadow || m.Quota)
	own.Limit.Unit = typev3.RateLimitUnit_UNKNOWN
	m, ok = set.Match("library", own)
	require.True(t, ok)
	require.Empty(t, m.Limit.Windows)
	m, ok = set.Match("museum", own)
	require.False(t, ok)
	require.True(t, m.UnknownDomain)
}

func keyOf(t *testing.T, set *ratelimitconfig.Set, texts ...string) string {
	t.Helper()
	m, ok := set.Match("d", descriptor(texts...))
	require.True(t, ok)
	require.NotEmpty(t, m.Key)
	return m.Key
}

// Entries count together only if all their texts are the same, or where a pattern is shared.
func TestKeysOfDifferentEntriesDiffer(t *testing.T) {
	set := compile(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a_b, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: s, value: "x*", share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: p, value: "x*", rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	require.NotEqual(t, keyOf(t, set, "a", "b_c"), keyOf(t, set, "a_b", "c"))
	require.NotEqual(t, keyOf(t, set, "p", "x1"), keyOf(t, set, "p", "x2"))
	require.Equal(t, keyOf(t, set, "s", "x1"), keyOf(t, set, "s", "x2"))
	own := descriptor("a", "1")
	own.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_HOUR}
	m, _ := set.Match("d", own)
	require.Equal(t, keyOf(t, set, "a", "1"), m.Key, "the same window")
	own.Limit.Unit = typev3.RateLimitUnit_DAY
	m, _ = set.Match("d", own)
	require.NotEqual(t, keyOf(t, set, "a", "1"), m.Key)
}

func TestMetricLabelsAreThePartsBetweenDots(t *testing.T) {
	for metric, want := range map[string][3]string{
		"d.a":                    {"d", "a", ""},
		"d.a_1.b.c":              {"d", "a_1", "b"},
		"d.ip_10.0.0.1.path_a:b": {"d", "ip_10_0_0_1", "path_a_b"},
		"shop.example.a":         {"shop", "example", "a"},
	} {
		domain, key1, key2 := ratelimitconfig.MetricLabels(metric)
		require.Equal(t, want, [3]string{domain, key1, key2})
	}
}

// naive finds the limit by looking at every descriptor of a level, and spells the pattern out.
func naive(
	list []*ratelimitconfig.Descriptor, entries []*ratelimitv3.RateLimitDescriptor_Entry,
) *ratelimitconfig.Limit {
	text := entries[0].GetKey() + "_" + entries[0].GetValue()
	ways := []func(name string) bool{
		func(name string) bool { return name == text },
		func(name string) bool { return strings.Contains(name, "*") && fits(name, text) },
		func(name string) bool { return name == entries[0].GetKey() },
	}
	for _, leadsThere := range ways {
		for _, d := range list {
			if !leadsThere(d.Name()) {
				continue
			}
			if len(entries) > 1 {
				return naive(d.Descriptors, entries[1:])
			}
			return d.Limit
		}
	}
	return nil
}

func fits(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] == '*' {
		return fits(pattern[1:], text) || text != "" && fits(pattern, text[1:])
	}
	return text != "" && pattern[0] == text[0] && fits(pattern[1:], text[1:])
}

func word(r *rand.Rand, letters string) string {
	b := make([]byte, r.IntN(4))
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

// anyLevel is YAML of descriptors, all different.
func anyLevel(r *rand.Rand, depth int) string {
	var list []string
	seen := map[string]bool{}
	for range r.IntN(6) {
		key, value := "k"+word(r, "ab_"), word(r, "ab_*")
		name := key + "_" + value
		if value == "" {
			name = key
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		text := fmt.Sprintf("{key: %q, value: %q", key, value)
		if r.IntN(3) > 0 {
			text += fmt.Sprintf(", rate_limit: {unit: hour, requests_per_unit: %d}", 1+r.IntN(1_000_000))
		}
		if depth > 0 {
			text += ", descriptors: " + anyLevel(r, depth-1)
		}
		list = append(list, text+"}")
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// Match finds in any configuration what a walk over all its descriptors finds.
func TestMatchFindsWhatAWalkOverAllFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 300 {
		c, err := read(t, "domain: d\ndescriptors: "+anyLevel(r, 2))
		require.NoError(t, err)
		set := ratelimitconfig.Compile([]*ratelimitconfig.Config{c})
		for range 100 {
			var texts []string
			for range 1 + r.IntN(3) {
				texts = append(texts, "k"+word(r, "ab_"), word(r, "ab_"))
			}
			d := descriptor(texts...)
			m, ok := set.Match("d", d)
			want := naive(c.Descriptors, d.GetEntries())
			require.Equal(t, want != nil, ok, "%q", texts)
			require.Same(t, want, m.Limit, "%q", texts)
			if ok {
				found++
			}
		}
	}
	require.Greater(t, found, 500)
}

// A match is on the way of each call: it makes a key and nothing else.
func TestMatchAllocatesItsKeyAlone(t *testing.T) {
	set := compile(t, library)
	for _, entries := range [][]string{
		{"reader", "staff-7-night"}, {"shelf", "a1", "book", "x"}, {"reader", "a value of some length, as a token may be"},
	} {
		d := descriptor(entries...)
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() { set.Match("library", d) }), 1.0, entries)
	}
}
