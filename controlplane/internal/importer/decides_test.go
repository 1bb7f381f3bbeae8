package importer_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// theirs is a configuration of envoyproxy/ratelimit, and decides as the service
// does: by maps of composite keys, from level to level without a way back.
type theirs struct {
	levels    map[string]*theirs
	wildcards []string // in the order of the file
	limit     int      // 0 = none; each is another, so that it names its level
	unlimited bool
}

// find returns the limit of a descriptor.
func (t *theirs) find(entries [][2]string) (limit int) {
	for i, e := range entries {
		next := t.levels[e[0]+"_"+e[1]]
		for _, w := range t.wildcards {
			if next == nil && wildcardMatch(strings.Split(w, "*"), e[0]+"_"+e[1]) {
				next = t.levels[w]
			}
		}
		if next == nil {
			next = t.levels[e[0]]
		}
		if next == nil {
			return 0
		}
		t = next
		if i == len(entries)-1 && !t.unlimited {
			return t.limit
		}
	}
	return 0
}

// wildcardMatch is the service's: first and last part at the ends, the others
// in order between them.
func wildcardMatch(parts []string, value string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(value, first) {
		return false
	}
	value = value[len(first):]
	if !strings.HasSuffix(value, last) {
		return false
	}
	value = value[:len(value)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(value, p)
		if !found {
			return false
		}
		value = after
	}
	return true
}

// valuesThere are values of keys in a configuration, with wildcards and without.
var valuesThere = []string{"", "", "x", "xy", "x*", "*y", "x*y", "a*b*c", "abc", "*"}

// generate writes levels of random keys, values and limits.
func (t *theirs) generate(r *rand.Rand, yaml *strings.Builder, indent string, depth int, limit *int) {
	t.levels = map[string]*theirs{}
	for range 1 + r.IntN(6) {
		key := []string{"ka", "kb"}[r.IntN(2)]
		value := valuesThere[r.IntN(len(valuesThere))]
		name := key
		if value != "" {
			name += "_" + value
		}
		if t.levels[name] != nil {
			continue
		}
		next := &theirs{}
		t.levels[name] = next
		if strings.Contains(value, "*") {
			t.wildcards = append(t.wildcards, name)
		}
		fmt.Fprintf(yaml, "%s- key: %s\n", indent, key)
		if value != "" {
			fmt.Fprintf(yaml, "%s  value: %q\n", indent, value)
		}
		switch r.IntN(6) {
		case 0:
		case 1:
			next.unlimited = true
			fmt.Fprintf(yaml, "%s  rate_limit: {unlimited: true}\n", indent)
		default:
			*limit++
			next.limit = *limit
			unit := []string{"week", "year"}[r.IntN(2)]
			fmt.Fprintf(yaml, "%s  rate_limit: {unit: %s, requests_per_unit: %d}\n", indent, unit, next.limit)
		}
		if depth > 1 && r.IntN(2) == 0 {
			fmt.Fprintf(yaml, "%s  descriptors:\n", indent)
			next.generate(r, yaml, indent+"    ", depth-1, limit)
		}
	}
}

// A policy made of a random configuration has, for every request, the limits
// that the service would have for it, counted for the same values.
func TestDecidesAsTheService(t *testing.T) {
	decidesAs(t, 25, "envoy-ratelimit", func(r *rand.Rand) (string, func() (map[string]string, []string)) {
		root, used := &theirs{}, map[string]int{}
		limit := 1_000_000
		yaml := &strings.Builder{}
		yaml.WriteString("domain: d\ndescriptors:\n")
		root.generate(r, yaml, "  ", 3, &limit)
		return yaml.String(), func() (map[string]string, []string) {
			values := map[string]string{}
			for _, key := range []string{"ka", "kb"} {
				if v := []string{"-", "x", "xy", "xay", "y", "abc", "aXbXc", "z"}[r.IntN(8)]; v != "-" {
					values[key] = v
				}
			}
			return values, expected(root, values, used)
		}
	})
}

// decidesAs makes policies of random configurations, and compares the limits and usage that
// they have for requests with those that the limiter has.
func decidesAs(t *testing.T, configurations int, by string,
	configure func(r *rand.Rand) (text string, request func() (headers map[string]string, want []string))) {
	t.Helper()
	wasm, compared := buildtest.Wasm(t), 0
	if testing.Short() {
		configurations /= 4
	}
	for seed := range uint64(configurations) {
		text, request := configure(rand.New(rand.NewPCG(seed, 7)))
		e := example{Import: by, files: []importer.File{{Name: "c.yaml", Text: []byte(text)}}}
		made, err := e.run()
		if errors.Is(err, importer.ErrNothing) {
			made.Policy, err = []byte("version: 1\nrules: []\n"), nil
		}
		require.NoError(t, err, "seed %d\n%s", seed, text)
		var input bytes.Buffer
		var want [][]string
		for range 80 {
			headers, limits := request()
			line, err := json.Marshal(map[string]any{"at_ms": 1000, "headers": headers})
			require.NoError(t, err)
			input.Write(append(line, '\n'))
			slices.Sort(limits)
			want = append(want, limits)
		}
		lines := simulated(t, wasm, made.Policy, &input)
		for i := range want {
			require.True(t, lines.Scan())
			got := seen(t, lines.Bytes())
			require.Equal(t, want[i], got, "seed %d, request %d %s\n%s\n%s", seed, i, lines.Text(), text, made.Policy)
			compared += len(want[i])
		}
	}
	require.Greater(t, compared, 40*configurations)
}

// simulated runs the requests through the filter with a policy, and returns what simulate
// prints.
func simulated(t *testing.T, wasm, policy []byte, requests *bytes.Buffer) *bufio.Scanner {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, simulate.Run(t.Context(), simulate.Options{
		Wasm: wasm, Text: policy, Requests: requests, Workers: 1, Seed: 1,
		CacheDir: buildtest.CacheDir(), Log: func(string) {},
	}, &out))
	return bufio.NewScanner(&out)
}

// expected counts the request as the service does, where Envoy sends a
// descriptor for every sequence of keys, and returns limits and usage.
func expected(root *theirs, values map[string]string, used map[string]int) []string {
	list := []string{}
	var walk func(entries [][2]string)
	walk = func(entries [][2]string) {
		if limit := root.find(entries); limit > 0 {
			counter := fmt.Sprint(entries)
			used[counter]++
			list = append(list, fmt.Sprintf("%d used %d", limit, used[counter]))
		}
		if len(entries) == 3 {
			return
		}
		for _, key := range []string{"ka", "kb"} {
			if v, ok := values[key]; ok {
				walk(append(slices.Clone(entries), [2]string{key, v}))
			}
		}
	}
	walk(nil)
	return list
}

// seen returns the limits and usage in simulate's output.
func seen(t *testing.T, line []byte) []string {
	var answer struct {
		Rules []struct {
			Windows []struct {
				Limit *int `json:"limit"`
				Used  int  `json:"used"`
			} `json:"windows"`
		} `json:"rules"`
	}
	require.NoError(t, json.Unmarshal(line, &answer))
	list := []string{}
	for _, r := range answer.Rules {
		for _, w := range r.Windows {
			if w.Limit != nil {
				list = append(list, fmt.Sprintf("%d used %d", *w.Limit, w.Used))
			}
		}
	}
	slices.Sort(list)
	return list
}

// bucket is a descriptor of the local filter: a value for each of its keys,
// empty for any. Each has another burst, which names it.
type bucket struct {
	keys, values []string
	burst        int
}

// isAlike reports whether two buckets are for the same keys and values.
func (b bucket) isAlike(other bucket) bool {
	return slices.Equal(b.keys, other.keys) && slices.Equal(b.values, other.values)
}

// Envoy takes the descriptor with exactly the request's values, else one with
// empty values that fits. Here only first values are empty, so that there is
// never a choice between two of those.
func TestDecidesAsTheLocalFilter(t *testing.T) {
	sequences := [][]string{{"ka"}, {"kb"}, {"ka", "kb"}, {"kb", "ka"}, {"kc", "ka"}}
	decidesAs(t, 15, "local-ratelimit", func(r *rand.Rand) (string, func() (map[string]string, []string)) {
		yaml := &strings.Builder{}
		yaml.WriteString(`stat_prefix: all
token_bucket: {max_tokens: 5000000, tokens_per_fill: 1, fill_interval: 3600s}
filter_enabled: {default_value: {numerator: 100}}
filter_enforced: {default_value: {numerator: 100}}
rate_limits:
`)
		for _, keys := range sequences {
			yaml.WriteString("  - actions:\n")
			for _, key := range keys {
				fmt.Fprintf(yaml, "      - request_headers: {header_name: x-%s, descriptor_key: %s}\n", key, key)
			}
		}
		yaml.WriteString("descriptors:\n")
		var buckets []bucket
		for range 1 + r.IntN(12) {
			b := bucket{keys: sequences[r.IntN(len(sequences))], burst: 1_000_000 + len(buckets)}
			for i := range b.keys {
				b.values = append(b.values, []string{"x", "y", "z*", ""}[r.IntN(4-i)])
			}
			if slices.ContainsFunc(buckets, b.isAlike) {
				continue
			}
			buckets = append(buckets, b)
			yaml.WriteString("  - entries:\n")
			for i := range b.keys {
				fmt.Fprintf(yaml, "      - {key: %s, value: %q}\n", b.keys[i], b.values[i])
			}
			interval := 3600 * (1 + r.IntN(2))
			fmt.Fprintf(yaml, "    token_bucket: {max_tokens: %d, tokens_per_fill: 1, fill_interval: %ds}\n", b.burst, interval)
		}
		used := map[string]int{}
		return yaml.String(), func() (map[string]string, []string) {
			headers := map[string]string{}
			for _, key := range []string{"ka", "kb", "kc"} {
				if v := []string{"-", "x", "y", "z*", "zz"}[r.IntN(5)]; v != "-" {
					headers["x-"+key] = v
				}
			}
			used["all"]++
			list := []string{fmt.Sprintf("5000000 used %d", used["all"])}
			for _, keys := range sequences {
				if line := taken(buckets, keys, headers, used); line != "" {
					list = append(list, line)
				}
			}
			return headers, list
		}
	})
}

// taken takes a token for one descriptor of a request; "" where none is asked.
func taken(buckets []bucket, keys []string, headers map[string]string, used map[string]int) string {
	var values []string
	for _, key := range keys {
		v, ok := headers["x-"+key]
		if !ok {
			return ""
		}
		values = append(values, v)
	}
	at := slices.IndexFunc(buckets, bucket{keys: keys, values: values}.isAlike)
	if at < 0 { // of values that are empty the first one is
		at = slices.IndexFunc(buckets, func(b bucket) bool {
			return slices.Equal(b.keys, keys) && b.values[0] == "" && slices.Equal(b.values[1:], values[1:])
		})
	}
	if at < 0 {
		return ""
	}
	counter := fmt.Sprint(at, values)
	used[counter]++
	return fmt.Sprintf("%d used %d", buckets[at].burst, used[counter])
}
