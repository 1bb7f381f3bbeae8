package policyfile_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
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
			var errs policy.Errors
			require.ErrorAs(t, err, &errs)

			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644))
			}
			want, err2 := os.ReadFile(golden)
			require.NoError(t, err2)
			require.Equal(t, string(want), err.Error()+"\n")
		})
	}
}
