package importer_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

var update = flag.Bool("update", false, "write what is seen into the golden files")

// importFile imports a file of testdata: that of a filter by the name local-*,
// else that of the service; its routes are beside it.
func importFile(t *testing.T, path string) (importer.Imported, error) {
	t.Helper()
	read := func(path string) importer.File {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return importer.File{Name: filepath.Base(path), Text: text}
	}
	var o importer.Options
	if routes := strings.TrimSuffix(path, ".yaml") + ".routes.yaml"; exists(routes) {
		f := read(routes)
		o.Routes = &f
	}
	if strings.HasPrefix(filepath.Base(path), "local-") {
		return importer.LocalRatelimit(read(path), o)
	}
	return importer.EnvoyRatelimit([]importer.File{read(path)}, o)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, ".routes.yaml") {
			continue
		}
		t.Run(file, func(t *testing.T) {
			made, err := importFile(t, file)
			require.NoError(t, err)
			seen := string(made.Policy) + "--- notes\n"
			for i := range made.Notes {
				seen += made.Notes[i].String() + "\n"
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(seen), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), seen)
		})
	}
}
