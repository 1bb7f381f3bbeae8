package policyfile_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The JSON made of the file is the one whose model shared/policy spells out.
func TestReadKeys(t *testing.T) {
	data, err := os.ReadFile("testdata/good/keys.yaml")
	require.NoError(t, err)
	_, n, warnings, err := policyfile.Read("keys.yaml", data)
	require.NoError(t, err)
	require.Len(t, warnings, 4, "of exact paths, and an override by a header")
	const golden = "../../../shared/policy/testdata/keys.json"
	if *update {
		require.NoError(t, os.WriteFile(golden, append(policy.AppendJSON(nil, n), '\n'), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), string(policy.AppendJSON(nil, n)))
}
