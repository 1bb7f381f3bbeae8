package policytest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// examples/gotest is a module that takes this one by a replace. It runs as it stands there, away
// from this repository, with the modules that this one has: nothing is downloaded.
func TestFromAnotherModule(t *testing.T) {
	dir := t.TempDir()
	example := filepath.Join(buildtest.Root(), "examples", "gotest")
	require.NoError(t, os.CopyFS(dir, os.DirFS(example)))
	sums, err := os.ReadFile(filepath.Join(buildtest.Root(), "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sluice.wasm"), buildtest.Wasm(t), 0o600))
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod",
			"XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "GOCACHE="+goCache(t))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %s\n%s", strings.Join(args, " "), out)
		return string(out)
	}
	run("mod", "edit", "-replace=github.com/sluice-ratelimit/sluice="+buildtest.Root())
	out := run("test", "-count=1", "-vet=off", "-v", "./...")
	for _, name := range []string{"PerUser", "FailedLogins", "Tokens", "BehindHTTP"} {
		require.Contains(t, out, "--- PASS: Test"+name+" (")
	}
}

func goCache(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}
