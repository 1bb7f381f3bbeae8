package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportSecret(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, reportSecretFile)
	secret, err := reportSecret(dir)
	require.NoError(t, err)
	require.Regexp(t, isReportSecret, secret)
	again, err := reportSecret(dir)
	require.NoError(t, err)
	require.Equal(t, secret, again)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	other, err := reportSecret(t.TempDir())
	require.NoError(t, err)
	require.NotEqual(t, secret, other)

	for _, text := range []string{"", "short", secret + "\n" + secret} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err = reportSecret(dir)
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret)
	}
	_, err = reportSecret(filepath.Join(dir, "none"))
	require.ErrorContains(t, err, "make the secret of reported keys")
}
