package buildtest

import (
	"os"
	"slices"
	"strings"
	"sync"
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

// modules are the bytes of the filter, by its build tags.
var modules sync.Map

// Wasm compiles the filter once and returns its bytes, which nobody may change.
func Wasm(tb testing.TB, tags ...string) []byte {
	tb.Helper()
	if module, ok := modules.Load(strings.Join(tags, " ")); ok {
		return module.([]byte)
	}
	module, err := os.ReadFile(Filter(tb, tags...))
	require.NoError(tb, err)
	module = slices.Clip(module)
	modules.Store(strings.Join(tags, " "), module)
	return module
}
