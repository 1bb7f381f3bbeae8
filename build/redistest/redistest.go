// Package redistest runs real Redis and Valkey servers for tests: one, one with TLS
// and a password, a Cluster, and three under Sentinel.
//
// Its invariant: no server outlives the test that started it. They listen on
// loopback alone. No program may import it.
package redistest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Binary is a server's program.
type Binary struct {
	Name string // "Redis" or "Valkey"
	path string
}

// All are the servers that tests have to pass on.
func All(t testing.TB) []Binary {
	t.Helper()
	return append(Redis(t), find(t, "Valkey", "SLUICE_VALKEY", "valkey/valkey-server"))
}

// Redis is the Redis server alone. It was built with TLS.
func Redis(t testing.TB) []Binary {
	t.Helper()
	return []Binary{find(t, "Redis", "SLUICE_REDIS", "redis/usr/bin/redis-server")}
}

// find takes the program that the variable names, or that build/fetch installs.
func find(t testing.TB, name, variable, path string) Binary {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	path = cmp.Or(os.Getenv(variable), filepath.Join(filepath.Dir(file), "..", "out", path))
	_, err := os.Stat(path)
	require.NoError(t, err, "run `make servers`, or set %s to the path of one", variable)
	return Binary{name, path}
}

// command is the program with the libraries that Debian's package has beside it.
func command(t testing.TB, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), path, args...)
	libraries, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "..", "lib", "*-linux-gnu"))
	if len(libraries) > 0 {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	}
	return cmd
}

// patience is how long a server may take to do what is waited for.
const patience = 15 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "it takes too long: "+what)
		}
	}
}
