package buildtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// Filter compiles the filter with the given build tags and returns the file, which is
// other tests' too.
func Filter(tb testing.TB, tags ...string) string {
	tb.Helper()
	file, err := wasm.Filter(Root(), tags...)
	require.NoError(tb, err)
	return file
}

// Compile compiles the filter of the source tree at root into file.
func Compile(root, file string, tags ...string) error { return wasm.Compile(root, file, tags...) }

// Wasm compiles the filter and returns its bytes.
func Wasm(tb testing.TB, tags ...string) []byte {
	tb.Helper()
	module, err := os.ReadFile(Filter(tb, tags...))
	require.NoError(tb, err)
	return module
}
