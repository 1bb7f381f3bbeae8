package docs_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Every algorithm that a policy may name has a section with a policy and a picture,
// and the first table says what it is to be chosen for.
func TestAlgorithmsAreDescribed(t *testing.T) {
	d := document(t, "docs/algorithms.md")
	names := []string{"layered"}
	for a := limit.FixedWindow; a <= limit.TokenBucket; a++ {
		names = append(names, policy.AlgorithmName(a))
	}
	choose := d.section("## The algorithms")
	for _, name := range names {
		require.Contains(t, choose, "\n| [`"+name+"`](#"+name+") | ")
		section := d.section("## " + name)
		for _, part := range []string{"```yaml " + name + ".yaml\n", "(img/" + name + ".svg)", "**Bound**", "**Source**"} {
			require.Contains(t, section, part, name)
		}
	}
}

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
			Memory struct{ Keys, Slots, Bytes uint64 }
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.file), []byte(f.text), 0o600))
		out, err := s.run(dir, "", "validate", "-f", f.file, "--output", "json")
		require.NoError(t, err, out)
		require.NoError(t, json.Unmarshal([]byte(out), &v))
		m := v.Memory
		require.Contains(t, d.text, fmt.Sprintf("\n| `%s` | %d | %d | %.1f MiB | %d |\n", name, m.Keys, m.Slots, float64(m.Bytes)/(1<<20), (m.Bytes+m.Keys/2)/m.Keys))
		if most[name] == 0 {
			continue
		}
		checked++
		out, err = s.run(dir, "", "simulate", "-f", f.file, "-r", "requests.jsonl", "--wasm", wasm)
		require.NoError(t, err, out)
		admitted, highest, all := admittedOf(t, out)
		require.Contains(t, d.text, fmt.Sprintf("\n| `%s` | %d of %d | %d |\n", name, admitted, all, highest))
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

// comingFrom is what users of other limiters know, by the section that must
// speak of it.
var comingFrom = map[string]string{
	"## Hammer: fix_window":         "algorithm: :fix_window|key|scale|limit|increment|hit/5|get/3|inc/4|set/4|clean/1|clean_period|start_link|count_denied",
	"## Hammer: fix_window_per_key": "algorithm: :fix_window_per_key|hit/5|expires_at/3|get/3|inc/4|set/4|clean/1|clean_period|count_denied",
	"## ADR-003: FIXED_WINDOW": "algorithm=FIXED_WINDOW|capacity|windowDurationMs|refillRate|tryConsume(tokens)|rate_limit_window_resets_total|" +
		"rate_limit_boundary_spikes_total|rate_limit_memory_usage_bytes|Hierarchical token bucket|Sliding window with sampling|" +
		"Fixed window with burst allowance|Burst buffer|Window jitter|Multi-tier windows|Adaptive windows",
	"## glimit: layered windows": "new()|per_second|burst_limit|new_window()|window(seconds:, max:)|window_seconds:, max_count:|identifier(fn)|on_limit_exceeded(fn)|" +
		"build()|hit()|apply()|apply_built()|RateLimited(retry_after)|Denied(retry_after)|get_count()|remove()|cleanup()|store()|check(",
	"## Python limits": "FixedWindowRateLimiter|FixedWindowElasticExpiryRateLimiter|MovingWindowRateLimiter|SlidingWindowCounterRateLimiter|" +
		"parse_many|hit(item|test(item|get_window_stats|clear(item|storage|cost=1|floats",
}

func TestComingFrom(t *testing.T) {
	s, d := build(t), document(t, "docs/coming-from.md")
	problems, checked := s.badPolicies([]doc{d})
	require.Empty(t, problems)
	require.GreaterOrEqual(t, checked, 4)
	for heading, words := range comingFrom {
		section := d.section(heading)
		for _, word := range strings.Split(words, "|") {
			require.Contains(t, section, word, heading)
		}
	}
	problems, checked = badPrograms(t, []doc{d, document(t, "docs/library.md")})
	require.Empty(t, problems)
	require.Positive(t, checked)
	problems, _ = badPrograms(t, []doc{{"docs/planted.md", "```go\npackage main\n\nfunc main() { nothing() }\n```\n"}})
	require.Len(t, problems, 1)

	operations := "\n" + operationsHeading + "\n" + document(t, "docs/counters.md").section(operationsHeading)
	missing, checked := badMethods(t, doc{d.path, d.text + operations})
	require.Empty(t, missing)
	require.GreaterOrEqual(t, checked, 20)
	missing, _ = badMethods(t, doc{d.path, d.text + operations + "| `their()` | `HitTwice` |\n"})
	require.Equal(t, []string{"HitTwice"}, missing)
}

// operationsHeading is where counters.md has the methods of a keyed.Limiter.
const operationsHeading = "## Operations"

var (
	lastCell = regexp.MustCompile(`(?m)^\|.*\| ([^|]+) \|$`)
	exported = regexp.MustCompile("`([A-Z]\\w+)(?:\\.([A-Z]\\w+))?")
)

// badMethods checks the Go names that the last columns of the tables speak of
// against what shared/keyed exports.
func badMethods(t *testing.T, d doc) (missing []string, checked int) {
	known := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(buildtest.Root(), "shared", "keyed", "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				known[n.Name.Name] = true
			case *ast.TypeSpec:
				known[n.Name.Name] = true
			case *ast.Field:
				for _, name := range n.Names {
					known[name.Name] = true
				}
			}
			return true
		})
	}
	for _, heading := range []string{operationsHeading, "## glimit: layered windows", "## Python limits"} {
		for _, cell := range lastCell.FindAllStringSubmatch(d.section(heading), -1) {
			for _, m := range exported.FindAllStringSubmatch(cell[1], -1) {
				for _, name := range m[1:] {
					checked++
					if name != "" && !known[name] {
						missing = append(missing, name)
					}
				}
			}
		}
	}
	return missing, checked
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
