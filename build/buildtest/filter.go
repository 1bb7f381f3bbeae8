package buildtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

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
