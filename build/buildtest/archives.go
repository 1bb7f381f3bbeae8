package buildtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// Archives calls each with the files of every archive whose name fits a pattern. What it sets
// the data of a file to is what the archive must say, or is written into it by update.
func Archives(t testing.TB, pattern string, update bool, each func(files []txtar.File)) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		all, err := txtar.ParseFile(name)
		require.NoError(t, err)
		want := txtar.Format(all)
		each(all.Files)
		got := txtar.Format(all)
		if update {
			require.NoError(t, os.WriteFile(name, got, 0o600))
		} else {
			require.Equal(t, string(want), string(got), name)
		}
	}
}
