package buildtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

// Fault is a mistake that a test plants in a copy of the filter's source, to
// see that something notices. The product has no line of it.
type Fault struct {
	Name string
	File string // from the root of the repository
	Old  string // what the file says, once
	New  string // what it says instead
}

// Plant compiles the filter with the fault and returns its bytes. It fails
// where the file does not say what is to be replaced: the fault then has to
// follow the source.
func Plant(tb testing.TB, f Fault) []byte {
	tb.Helper()
	dir := tb.TempDir()
	source := filepath.Join(Root(), f.File)
	text, err := os.ReadFile(source)
	require.NoError(tb, err)
	require.Equal(tb, 1, strings.Count(string(text), f.Old), "%s: how often %s says %q", f.Name, f.File, f.Old)
	patched := filepath.Join(dir, "patched.go")
	require.NoError(tb, os.WriteFile(patched, []byte(strings.Replace(string(text), f.Old, f.New, 1)), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: patched}})
	require.NoError(tb, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(tb, os.WriteFile(list, overlay, 0o600))
	file := filepath.Join(dir, "faulty.wasm")
	require.NoError(tb, graft.Compile(Root(), file, "-overlay="+list), "%s: it does not compile", f.Name)
	wasm, err := os.ReadFile(file)
	require.NoError(tb, err)
	return wasm
}
