// Package redistest runs real Redis and Valkey servers for tests: one, one with TLS
// and a password, a Cluster, and three under Sentinel.
//
// Its invariant: no server outlives the test that started it. They listen on
// loopback alone. No program may import it.
package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Binary is a server's program.
type Binary struct {
	Path    string
	Name    string // "Redis" or "Valkey"
	Version string // such as "7.0.15"
	TLS     bool   // was built with it
}

func (b Binary) String() string { return b.Name + "-" + b.Version }

// variables name the programs, with commas between. Where one is not set, the
// program is the one that build/fetch installs.
var variables = map[string]string{
	"SLUICE_REDIS":  "build/out/redis/usr/bin/redis-server",
	"SLUICE_VALKEY": "build/out/valkey/valkey-server",
}

// All are the servers that tests have to pass on.
func All(t testing.TB) []Binary {
	t.Helper()
	return append(Redis(t), from(t, "SLUICE_VALKEY")...)
}

// Redis are the Redis servers alone.
func Redis(t testing.TB) []Binary {
	t.Helper()
	return from(t, "SLUICE_REDIS")
}

func from(t testing.TB, variable string) []Binary {
	t.Helper()
	list := os.Getenv(variable)
	if list == "" {
		_, file, _, _ := runtime.Caller(0)
		list = filepath.Join(filepath.Dir(file), "..", "..", variables[variable])
	}
	var all []Binary
	for path := range strings.SplitSeq(list, ",") {
		all = append(all, ask(t, variable, path))
	}
	return all
}

var versionLine = regexp.MustCompile(`^(Redis|Valkey) server v=(\S+)`)

func ask(t testing.TB, variable, path string) Binary {
	t.Helper()
	out, err := command(t, path, "--version").Output()
	found := versionLine.FindSubmatch(out)
	if err != nil || found == nil {
		require.FailNow(t, fmt.Sprintf("%s is no server (%v): run `make servers`, or set %s to the path of one", path, err, variable))
	}
	b := Binary{Path: path, Name: string(found[1]), Version: string(found[2])}
	// It ends at once, either way: there is no such certificate.
	out, _ = command(t, path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none", "--tls-key-file", "/none").CombinedOutput()
	b.TLS = strings.Contains(string(out), "configure TLS")
	return b
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
