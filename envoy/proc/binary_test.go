package proc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// executable makes a file that can be run, and its folders.
func executable(t *testing.T, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	return path
}

func TestFindTakesTheStrongestSource(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("ENVOY_PATH", "")
	t.Setenv("SLUICE_ENVOY", "")

	_, err := Find()
	require.ErrorIs(t, err, ErrNoEnvoy)
	require.ErrorContains(t, err, "make test")

	// From the weakest source to the strongest, each overruling those before.
	onPath := executable(t, t.TempDir(), "envoy")
	t.Setenv("PATH", filepath.Dir(onPath))
	found, err := Find()
	require.NoError(t, err)
	require.Equal(t, onPath, found)

	oldest, newest := executable(t, t.TempDir(), "a"), executable(t, t.TempDir(), "b")
	t.Setenv("SLUICE_ENVOY", "1.36.4="+oldest+",1.40.0="+newest)
	all, err := All()
	require.NoError(t, err)
	require.Equal(t, []string{oldest, newest}, all)
	found, err = Find()
	require.NoError(t, err)
	require.Equal(t, newest, found)

	given := executable(t, t.TempDir(), "given")
	t.Setenv("ENVOY_PATH", given)
	all, err = All()
	require.NoError(t, err)
	require.Equal(t, []string{given}, all)

	t.Setenv("ENVOY_PATH", filepath.Join(t.TempDir(), "missing"))
	_, err = Find()
	require.ErrorContains(t, err, "find envoy by ENVOY_PATH")
	t.Setenv("ENVOY_PATH", "")
	t.Setenv("SLUICE_ENVOY", oldest)
	_, err = All()
	require.ErrorContains(t, err, "is not VERSION=PATH")
}
