package build

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The nested modules are compiled by nothing in this one. Each links what no user of
// the product is to download, and reads the product's packages as they are in this
// tree.
func TestNestedModulesVet(t *testing.T) {
	var modules []string
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path == filepath.Join("..", "build", "out"):
			return fs.SkipDir
		case entry.Name() == "go.mod":
			modules = append(modules, filepath.Dir(path))
		}
		return nil
	}))
	require.Subset(t, modules, []string{filepath.Join("..", "build", "measure"), filepath.Join("..", "build", "release")})
	for _, dir := range modules {
		if sources, _ := filepath.Glob(filepath.Join(dir, "*.go")); dir == ".." || len(sources) == 0 {
			continue // a module without source pins a tool that tests run
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "vet", "./...")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s\nA nested module follows the versions of go.mod: `cd %s && go mod tidy`. "+
				"Where there is no network, `go mod download` there beforehand.", out, dir)
		})
	}
}
