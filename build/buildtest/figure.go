package buildtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Figure logs what a test has measured, and keeps it as a line of a file in
// build/out/figures: go test shows no output of packages that pass, so `make
// test` prints those files at its end. One line for each test.
func Figure(tb testing.TB, format string, args ...any) {
	tb.Helper()
	_, file, _, _ := runtime.Caller(1)
	folder, err := filepath.Rel(Root(), filepath.Dir(file))
	require.NoError(tb, err)
	line := fmt.Sprintf(format, args...)
	tb.Log(line)
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == filepath.Separator {
			return '-'
		}
		return r
	}, folder+"/"+tb.Name())
	figures := filepath.Join(Root(), "build", "out", "figures")
	require.NoError(tb, os.MkdirAll(figures, 0o750))
	require.NoError(tb, os.WriteFile(filepath.Join(figures, name+".txt"), []byte(filepath.ToSlash(folder)+": "+line+"\n"), 0o600))
}
