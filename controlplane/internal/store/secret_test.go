package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A secret is made once for a store and no other store has it.
func TestSecret(t *testing.T) {
	dir := t.TempDir()
	var seen [][]byte
	for _, at := range []string{dir, dir, t.TempDir()} {
		s, err := Open(at)
		require.NoError(t, err)
		for range 2 {
			secret, err := s.Secret(t.Context())
			require.NoError(t, err)
			require.Len(t, secret, 32)
			seen = append(seen, secret)
		}
		require.NoError(t, s.Close())
	}
	require.Equal(t, [][]byte{seen[0], seen[0], seen[0]}, seen[1:4])
	require.Equal(t, seen[4], seen[5])
	require.NotEqual(t, seen[0], seen[4])
}
