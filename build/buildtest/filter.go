// Package buildtest compiles for tests: the filter, as it is and with faults, and
// the reader of custom resources. It also keeps what tests have measured.
//
// Its invariant: what a test gets was compiled from the tree under test, never
// an older file that happened to lie around. No program may import it.
package buildtest

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

// Root returns the root folder of this repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Filter compiles the filter with the given build tags and returns the file.
func Filter(tb testing.TB, tags ...string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "sluice.wasm")
	require.NoError(tb, Compile(Root(), file, tags...))
	return file
}

// Compile compiles the filter of the source tree at root into file.
func Compile(root, file string, tags ...string) error {
	return graft.Compile(root, file, "-tags="+strings.Join(tags, ","))
}

// Wasm compiles the filter and returns its bytes.
func Wasm(tb testing.TB, tags ...string) []byte {
	tb.Helper()
	wasm, err := os.ReadFile(Filter(tb, tags...))
	require.NoError(tb, err)
	return wasm
}

// CacheDir is where tests keep modules compiled for the simulator, which takes
// seconds for each otherwise.
func CacheDir() string { return filepath.Join(Root(), "build", "out", "compiled") }
