package policyfile_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

var update = flag.Bool("update", false, "write what is seen into the golden files")

// Every bad policy is answered with exactly the problems beside it, and every valid one
// that is worth a warning gets exactly those.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		kind := filepath.Base(filepath.Dir(file))
		if kind == "good" {
			continue
		}
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			p, n, warnings, err := policyfile.Read(filepath.Base(file), data)
			if kind == "warned" {
				require.NoError(t, err)
				require.NotEmpty(t, warnings)
				requireGolden(t, file, policyfile.Errors(warnings).Error()+"\n")
				return
			}
			var errs policyfile.Errors
			require.ErrorAs(t, err, &errs)
			require.Nil(t, p)
			require.Nil(t, n)
			requireGolden(t, file, err.Error()+"\n")
		})
	}
}

// requireGolden compares with the .txt file beside the .yaml file.
func requireGolden(t *testing.T, file, got string) {
	t.Helper()
	golden := strings.TrimSuffix(file, ".yaml") + ".txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
