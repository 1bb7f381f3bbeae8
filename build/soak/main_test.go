package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// Every fuzz target there is is in the soak, and everything in the soak exists.
func TestPartsExist(t *testing.T) {
	var there, here []string
	source := map[string]string{} // of a package's tests, by directory
	require.NoError(t, filepath.WalkDir(buildtest.Root(), func(path string, d os.DirEntry, err error) error {
		if err == nil && path == filepath.Join(buildtest.Root(), "build", "out") {
			return filepath.SkipDir // TinyGo's source, which has targets of its own
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		dir, err := filepath.Rel(buildtest.Root(), filepath.Dir(path))
		require.NoError(t, err)
		source["./"+filepath.ToSlash(dir)] += string(text)
		for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			there = append(there, m[1])
		}
		return nil
	}))
	for _, f := range fuzzed {
		here = append(here, f.target)
	}
	slices.Sort(there)
	slices.Sort(here)
	require.Equal(t, there, here)

	standard := []string{"-run", "-fuzz", "-fuzztime", "-fuzzminimizetime"}
	for _, p := range parts(1, 1) {
		tests := source[p.args[0]]
		require.NotEmpty(t, tests, p.name)
		for i, arg := range p.args {
			switch {
			case arg == "-run" || arg == "-fuzz":
				name := strings.Trim(p.args[i+1], "^$")
				require.True(t, name == "" || strings.Contains(tests, "func "+name), "%s: %s", p.name, name)
			case strings.HasPrefix(arg, "-") && !slices.Contains(standard, arg):
				require.Contains(t, tests, `("`+strings.TrimPrefix(arg, "-")+`"`, p.name)
			}
		}
	}
}

func TestSummaryTellsFailures(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, []part{{"good", []string{".", "-run", "^TestPartsExist$"}}}))
	require.Contains(t, out.String(), "ok     good")
	bad := part{"bad", []string{"./no-such-package"}}
	require.EqualError(t, run(t.Context(), &out, []part{bad, {"good", []string{".", "-run", "^$"}}}), "1 of 2 parts failed")
	require.Contains(t, out.String(), "FAILED bad")
	require.Contains(t, out.String(), "2 of 2 parts")
	require.Error(t, run(t.Context(), &out, nil))
}

// What is interrupted leaves no process behind.
func TestInterruptedPartsLeaveNothing(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	cmd := command(ctx, "sh", "-c", "sleep 600 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(grandchild, 0))
	interrupt()
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", grandchild))
		return err != nil || strings.Contains(string(state), ") Z ") // nobody reaps it in a container
	}, time.Minute, 10*time.Millisecond)
}

func TestSaid(t *testing.T) {
	require.Equal(t, []string{"7 runs", "fuzz: elapsed: 3s, execs: 2"}, said("=== RUN   TestX\n    x_test.go:5: 7 runs\n--- PASS: TestX\nfuzz: elapsed: 0s\nfuzz: elapsed: 3s, execs: 2\nPASS\n"))
}
