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
		if t = next; i == len(entries)-1 && !t.unlimited {
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

// generate writes levels of random keys, values and limits.
func (t *theirs) generate(r *rand.Rand, yaml *strings.Builder, indent string, depth int, limit *int) {
	t.levels = map[string]*theirs{}
	for range 1 + r.IntN(6) {
		key, value := []string{"ka", "kb"}[r.IntN(2)], []string{"", "", "x", "xy", "x*", "*y", "x*y", "a*b*c", "abc", "*"}[r.IntN(10)]
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
			fmt.Fprintf(yaml, "%s  rate_limit: {unit: %s, requests_per_unit: %d}\n", indent, []string{"week", "year"}[r.IntN(2)], next.limit)
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
		root, limit, used := &theirs{}, 1_000_000, map[string]int{}
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
			require.Equal(t, want[i], seen(t, lines.Bytes()), "seed %d, request %d %s\n%s\n%s", seed, i, lines.Text(), text, made.Policy)
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
		Wasm: wasm, Text: policy, Requests: requests, Workers: 1, Seed: 1, CacheDir: buildtest.CacheDir(), Log: func(string) {},
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
