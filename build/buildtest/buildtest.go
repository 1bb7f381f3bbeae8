// Package buildtest has what tests take from the tree itself: the compiled filter (buildtest.go), a
// reader of Kubernetes' resources (kubernetes.go), golden archives and answers of models
// (answers.go).
//
// Its invariant: what a test gets was compiled from the tree under test, never
// an older file that happened to lie around. No program may import it.
package buildtest

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// Root returns the root folder of this repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// CacheDir is where tests keep modules compiled for the simulator, which takes
// seconds for each otherwise.
func CacheDir() string { return filepath.Join(Root(), "build", "out", "compiled") }

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

// Refusing is a module that refuses every configuration, in as few bytes as Envoy accepts.
const Refusing = "\x00asm\x01\x00\x00\x00" +
	"\x01\x0f\x03\x60\x00\x00\x60\x01\x7f\x01\x7f\x60\x02\x7f\x7f\x01\x7f" + // types: also func(i32, i32) i32
	"\x03\x04\x03\x00\x01\x02" + // one function of each
	"\x05\x03\x01\x00\x01" + // a page of memory
	"\x07\x54\x04" + // four exports
	"\x06memory\x02\x00" +
	"\x17proxy_abi_version_0_2_0\x00\x00" +
	"\x18proxy_on_memory_allocate\x00\x01" +
	"\x12proxy_on_configure\x00\x02" +
	"\x0a\x0e\x03\x02\x00\x0b\x04\x00\x41\x00\x0b\x04\x00\x41\x00\x0b" // return; return 0; return 0
