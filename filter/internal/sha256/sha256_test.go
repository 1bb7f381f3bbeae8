package sha256

import (
	"bytes"
	"crypto/hmac"
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
			require.Equal(t, stdlib.Sum256(message), Sum(message), "%x", message)
		}
	}
	message := make([]byte, 100_003)
	_, err := random.Read(message)
	require.NoError(t, err)
	require.Equal(t, stdlib.Sum256(message), Sum(message))
}

func TestHMAC(t *testing.T) {
	for n := range 65 {
		secret, message := bytes.Repeat([]byte{byte(n)}, n), bytes.Repeat([]byte{0xa5}, 3*n)
		h := hmac.New(stdlib.New, secret)
		h.Write(message)
		sum := HMAC(secret, message)
		require.Equal(t, h.Sum(nil), sum[:])
	}
}
