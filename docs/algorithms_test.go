package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The requests of the pictures in algorithms.md come at these ms: a few, three bursts of
// twelve, and from 18 s on two a second.
func pictured() (at []int64) {
	for _, burst := range []struct{ begin, n, gap int64 }{{3_010, 4, 150}, {8_210, 12, 150}, {10_210, 12, 150}, {13_610, 12, 150}, {18_010, 36, 500}} {
		for i := range burst.n {
			at = append(at, burst.begin+i*burst.gap)
		}
	}
	return at
}

// The tables of algorithms.md are what simulate and validate say of its policies, and
// what is admitted is within the bounds that the page states.
func TestAlgorithmsTables(t *testing.T) {
	s, d, wasm := build(t), document(t, "docs/algorithms.md"), buildtest.Filter(t)
	most := map[string]int{"fixed_window": 20, "fixed_window_per_key": 20, "sliding_window_log": 10, "sliding_window_counter": 21, "token_bucket": 20, "layered": 14}
	dir, checked := t.TempDir(), 0
	var lines strings.Builder
	for _, ms := range pictured() {
		fmt.Fprintf(&lines, `{"at_ms":%d,"headers":{"x-user-id":"alice"}}`+"\n", 1_700_000_000_000+ms)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "requests.jsonl"), []byte(lines.String()), 0o600))
	for _, f := range d.fences() {
		name, isPolicy := strings.CutSuffix(f.file, ".yaml")
		if !isPolicy {
			continue
		}
		var v struct {
			Memory struct{ Keys, Bytes uint64 }
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.file), []byte(f.text), 0o600))
		out, err := s.run(dir, "", "validate", "-f", f.file, "--output", "json")
		require.NoError(t, err, out)
		require.NoError(t, json.Unmarshal([]byte(out), &v))
		m := v.Memory
		checked++
		out, err = s.run(dir, "", "simulate", "-f", f.file, "-r", "requests.jsonl", "--wasm", wasm)
		require.NoError(t, err, out)
		admitted, highest, all := admittedOf(t, out)
		require.Contains(t, d.text, fmt.Sprintf("\n| `%s` | %d of %d | %d | %.1f MiB | %d |\n", name, admitted, all, highest, float64(m.Bytes)/(1<<20), (m.Bytes+m.Keys/2)/m.Keys))
		require.LessOrEqual(t, highest, most[name], name)
	}
	require.Len(t, most, checked)
}

// admittedOf reads what simulate says of the pictured requests: how many it admitted, the
// most of them in any 10 s, and of how many.
func admittedOf(t *testing.T, output string) (admitted, highest, all int) {
	t.Helper()
	var times []int64
	answers := json.NewDecoder(strings.NewReader(output))
	for _, ms := range pictured() {
		var answer struct{ Allowed bool }
		require.NoError(t, answers.Decode(&answer))
		if answer.Allowed {
			times = append(times, ms)
		}
	}
	for i, ms := range times {
		first := slices.IndexFunc(times, func(at int64) bool { return at > ms-10_000 })
		highest = max(highest, i-first+1)
	}
	return len(times), highest, len(pictured())
}

// badPrograms compiles the Go programs of the documents.
func badPrograms(t *testing.T, docs []doc) (problems []string, checked int) {
	for _, d := range docs {
		for _, f := range d.fences() {
			if f.lang != "go" {
				continue
			}
			checked++
			file := filepath.Join(t.TempDir(), "main.go")
			require.NoError(t, os.WriteFile(file, []byte(f.text), 0o600))
			cmd := exec.CommandContext(t.Context(), "go", "vet", file)
			cmd.Dir = buildtest.Root()
			if out, err := cmd.CombinedOutput(); err != nil {
				problems = append(problems, f.at+": "+string(out))
			}
		}
	}
	return problems, checked
}
