package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// TestEmptyPolicyIsValid: what render bakes in without -f is a policy.
func TestEmptyPolicyIsValid(t *testing.T) {
	_, _, _, err := policyfile.Read("empty", []byte(envoy.EmptyPolicy))
	require.NoError(t, err)
}

func TestWriteFilter(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	path, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	again, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	require.Equal(t, path, again)
	other, err := writeFilter([]byte("two"))
	require.NoError(t, err)
	require.NotEqual(t, path, other)

	require.NoError(t, os.WriteFile(path, nil, 0o600)) // a disk that was full
	_, err = writeFilter([]byte("one"))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 2, "no temporary files left")
}
