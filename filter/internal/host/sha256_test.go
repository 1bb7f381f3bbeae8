package host

import (
	stdlib "crypto/sha256"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every length around the ends of blocks, and random longer ones.
func TestSHA256(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for size := range 300 {
		message := make([]byte, size)
		for range 20 {
			_, err := random.Read(message)
			require.NoError(t, err)
			require.Equal(t, stdlib.Sum256(message), sha256(message), "%x", message)
		}
	}
	message := make([]byte, 100_003)
	_, err := random.Read(message)
	require.NoError(t, err)
	require.Equal(t, stdlib.Sum256(message), sha256(message))
}
