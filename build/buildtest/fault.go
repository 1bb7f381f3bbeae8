package buildtest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/graft"
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

var packageClause = regexp.MustCompile(`(?m)^package \w+$`)

// Overlay returns a flag for the go command with which it compiles edited copies.
func Overlay(tb testing.TB, edits ...Edit) string {
	tb.Helper()
	dir := tb.TempDir()
	replace := map[string]string{} // by source
	put := func(source, text string) {
		if replace[source] == "" {
			replace[source] = filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		}
		require.NoError(tb, os.WriteFile(replace[source], []byte(text), 0o600))
	}
	for _, e := range edits {
		source := filepath.Join(Root(), e.File)
		text, err := os.ReadFile(cmp.Or(replace[source], source))
		require.NoError(tb, err)
		require.Equal(tb, 1, strings.Count(string(text), e.Old), "how often %s says %q", e.File, e.Old)
		put(source, strings.Replace(string(text), e.Old, e.New, 1))
		put(filepath.Join(filepath.Dir(source), "planted.go"), packageClause.FindString(string(text))+choice)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(tb, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(tb, os.WriteFile(list, overlay, 0o600))
	return "-overlay=" + list
}

// Plant compiles the filter with the edits and returns its bytes.
func Plant(tb testing.TB, edits ...Edit) []byte {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "faulty.wasm")
	require.NoError(tb, graft.Compile(Root(), file, Overlay(tb, edits...)))
	wasm, err := os.ReadFile(file)
	require.NoError(tb, err)
	return wasm
}
