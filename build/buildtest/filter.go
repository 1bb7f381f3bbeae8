// Package buildtest compiles the filter for tests.
//
// Its invariant: what a test gets was compiled from the tree under test, never
// an older file that happened to lie around.
package buildtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
	return compile(root, file, "-tags="+strings.Join(tags, ","))
}

func compile(root, file, flag string) error {
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", flag, "-o", file, "./filter")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the filter: %w\n%s", err, out)
	}
	return nil
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
