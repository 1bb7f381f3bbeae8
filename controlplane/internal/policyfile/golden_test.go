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

// Every bad policy is answered with exactly the problems beside it.
func TestBadPolicies(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			p, n, _, err := policyfile.Read(filepath.Base(file), data)
			require.Error(t, err)
			require.Nil(t, p)
			require.Nil(t, n)
			var errs policyfile.Errors
			require.ErrorAs(t, err, &errs)

			requireGolden(t, file, err.Error()+"\n")
		})
	}
}

// Every valid policy that is worth a warning gets exactly those beside it.
func TestWarnedPolicies(t *testing.T) {
	files, err := filepath.Glob("testdata/warned/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			_, _, warnings, err := policyfile.Read(filepath.Base(file), data)
			require.NoError(t, err)
			require.NotEmpty(t, warnings)
			requireGolden(t, file, policyfile.Errors(warnings).Error()+"\n")
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
