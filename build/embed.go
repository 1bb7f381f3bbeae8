// Package build holds what is made from this repository and what checks it:
// the compiled filter as the command line carries it, pinned tool versions, and
// the laws of the source tree as tests.
//
// Its invariant: it compiles before anything has been built. It must never
// import another package of this module: everything may depend on it.
package build

import (
	"embed"
	"errors"
	"io/fs"
)

// out holds at most one file of interest, embed/sluice.wasm. A fresh clone has
// only a placeholder there.
//
//go:embed all:out/embed
var out embed.FS

// ErrNoFilter says that this binary was built without the filter inside.
var ErrNoFilter = errors.New("built without the filter: run make build, or give --wasm FILE")

// Filter returns the compiled filter, a WebAssembly module.
func Filter() ([]byte, error) { return filterIn(out) }

func filterIn(files fs.FS) ([]byte, error) {
	wasm, err := fs.ReadFile(files, "out/embed/sluice.wasm")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoFilter
	}
	return wasm, err
}
