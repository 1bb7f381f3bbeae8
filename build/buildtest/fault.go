package buildtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// Edit changes what a file of the source says once. A test plants mistakes so, to see
// that something notices. The product has no line of it.
//
// Several mistakes fit into one program: in an edit, planted is the name of the one
// that the environment chooses, and pick its first value if that is chosen, else its
// second.
type Edit struct {
	File string // from the root of the repository
	Old  string
	New  string
}

// ChooseFault is the environment's variable that names the planted mistake.
const ChooseFault = "SLUICE_PLANTED"

const choice = `

import "syscall"

var planted, _ = syscall.Getenv("` + ChooseFault + `")

func pick[T any](fault string, wrong, right T) T {
	if planted == fault {
		return wrong
	}
	return right
}
`

// getenv is what a C library has, which the filter is not linked with.
const getenv = `package host

import "unsafe"

//go:wasmimport wasi_snapshot_preview1 environ_get
func environ(list, text unsafe.Pointer) uint32

var list, text [4096]byte

//export getenv
func getenv(name *byte) *byte {
	environ(unsafe.Pointer(&list), unsafe.Pointer(&text))
	return &text[len("` + ChooseFault + `=")] // it is the only one, or there is none
}
`

var packageClause = regexp.MustCompile(`(?m)^package \w+$`)

// Overlay returns a flag for the go command with which it compiles edited copies.
func Overlay(tb testing.TB, edits ...Edit) string {
	tb.Helper()
	dir := tb.TempDir()
	replace := map[string]string{} // by source
	for source, text := range edited(tb, edits) {
		copied := filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		require.NoError(tb, os.WriteFile(copied, []byte(text), 0o600))
		replace[filepath.Join(Root(), source)] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(tb, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(tb, os.WriteFile(list, overlay, 0o600))
	return "-overlay=" + list
}

// edited returns the text of each file that edits make another.
func edited(tb testing.TB, edits []Edit) map[string]string {
	tb.Helper()
	texts := map[string]string{}
	for _, e := range edits {
		if texts[e.File] == "" {
			text, err := os.ReadFile(filepath.Join(Root(), e.File))
			require.NoError(tb, err)
			texts[e.File] = string(text)
		}
		require.Equal(tb, 1, strings.Count(texts[e.File], e.Old), "how often %s says %q", e.File, e.Old)
		texts[e.File] = strings.Replace(texts[e.File], e.Old, e.New, 1)
		texts[filepath.Join(filepath.Dir(e.File), "planted.go")] = packageClause.FindString(texts[e.File]) + choice
	}
	return texts
}

// Plant compiles the filter with the edits, in a copy of its source, and returns its
// bytes.
func Plant(tb testing.TB, edits ...Edit) []byte {
	tb.Helper()
	root := tb.TempDir()
	for _, folder := range []string{"filter", "shared"} {
		require.NoError(tb, os.CopyFS(filepath.Join(root, folder), os.DirFS(filepath.Join(Root(), folder))))
	}
	texts := edited(tb, edits)
	texts["filter/internal/host/getenv.go"] = getenv
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(Root(), file))
		require.NoError(tb, err)
		texts[file] = string(text)
	}
	for file, text := range texts {
		require.NoError(tb, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	file, err := wasm.Filter(root)
	require.NoError(tb, err)
	module, err := os.ReadFile(file)
	require.NoError(tb, err)
	return module
}
