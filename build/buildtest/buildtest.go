// Package buildtest compiles for tests: the filter, and the reader of custom resources.
//
// Its invariant: what a test gets was compiled from the tree under test, never
// an older file that happened to lie around. No program may import it.
package buildtest

import (
	"path/filepath"
	"runtime"
)

// Root returns the root folder of this repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// CacheDir is where tests keep modules compiled for the simulator, which takes
// seconds for each otherwise.
func CacheDir() string { return filepath.Join(Root(), "build", "out", "compiled") }
