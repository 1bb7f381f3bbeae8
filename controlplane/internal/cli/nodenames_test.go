package cli

import (
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNodeNamesAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node-names")
	require.NoError(t, os.WriteFile(file, []byte("a.corp one\n"), 0o600))
	identify, err := (&nodeNameOptions{file: file}).identify(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	cert := &x509.Certificate{DNSNames: []string{"a.corp"}}
	san, err := identify(cert, "one")
	require.NoError(t, err)
	require.Equal(t, "a.corp", san)
	_, err = identify(cert, "two")
	require.Error(t, err)

	require.NoError(t, os.WriteFile(file, []byte("a.corp two\n"), 0o600))
	require.Eventually(t, func() bool { _, err := identify(cert, "two"); return err == nil }, 10*time.Second, 10*time.Millisecond)
	_, err = identify(cert, "one")
	require.Error(t, err)
}
