package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// testsEnd is how the files end that have a policy's tests.
const testsEnd = ".test.yaml"

// TestPolicyTests runs the tests of the policies that these pages and examples promise something
// by: those that a page shows, and those in testdata/PAGE.
func TestPolicyTests(t *testing.T) {
	s := build(t)
	s.filter = buildtest.Filter(t)
	run := func(dir string) {
		out, err := s.run(dir, "", "test", "--wasm", s.filter)
		require.NoError(t, err, out)
		t.Log(out)
	}
	examples := filepath.Join(buildtest.Root(), "examples")
	requireTests(t, examples)
	run(examples)
	for _, d := range documents(t) {
		page := strings.TrimSuffix(strings.TrimPrefix(d.path, "docs/"), ".md")
		dir := t.TempDir()
		d.writePolicies(t, dir)
		if page == "recipes" {
			requireTests(t, dir)
		}
		if beside := filepath.Join("testdata", page); exists(beside) {
			require.NoError(t, os.CopyFS(dir, os.DirFS(beside)))
		}
		if tests, err := filepath.Glob(filepath.Join(dir, "*"+testsEnd)); len(tests) > 0 {
			require.NoError(t, err)
			run(dir)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// requireTests fails if a policy of a folder has no tests beside it.
func requireTests(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		require.True(t, strings.HasSuffix(file, testsEnd) || exists(strings.TrimSuffix(file, ".yaml")+testsEnd),
			"%s has no tests", file)
	}
}

var firstRule = regexp.MustCompile(`(?m)^ *- +(?:\{ *)?name: ([\w-]+)`)

// writePolicies writes a page's policies and their tests into a folder. A block without a name gets
// that of its first rule, with -2 and so on from the second of this name on.
func (d doc) writePolicies(t *testing.T, dir string) {
	t.Helper()
	taken := map[string]int{}
	for _, f := range d.fences() {
		text, ok := f.policyOf()
		name := f.file
		switch rule := firstRule.FindStringSubmatch(text); {
		case strings.HasSuffix(f.file, testsEnd):
			text = f.text
		case !ok:
			continue
		case name == "" && rule == nil:
			continue
		case name == "":
			taken[rule[1]]++
			name = rule[1] + ".yaml"
			if n := taken[rule[1]]; n > 1 {
				name = fmt.Sprintf("%s-%d.yaml", rule[1], n)
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}
