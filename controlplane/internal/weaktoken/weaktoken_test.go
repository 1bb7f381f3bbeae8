package weaktoken

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func TestCommonTokensAreWeak(t *testing.T) {
	for token, want := range map[string]string{
		"":            "no text at all",
		"a":           "three letters",
		"zZ":          "three letters",
		"ZZZ":         "three letters",
		"token":       "a common word",
		"Secret":      "a common word",
		"CHANGEME":    "a common word",
		"password123": "a common word",
		"Sluice1!":    "a common word",
		"admin":       "a common word",
		"s3cret":      "a common word",
	} {
		why, weak := Weak(digest(token))
		require.True(t, weak, token)
		require.Contains(t, why, want, token)
		_, weak = Weak(strings.ToUpper(digest(token)))
		require.True(t, weak, token)
	}
	for _, token := range []string{rand.Text(), "9fK2-vvq0", "token of the test", "abcx"} {
		_, weak := Weak(digest(token))
		require.False(t, weak, token)
	}
	for _, no := range []string{"", "zz", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("g", 64)} {
		_, weak := Weak(no)
		require.False(t, weak, "not a digest: %s", no)
	}
}
