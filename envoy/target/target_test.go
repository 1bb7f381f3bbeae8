package target

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzNormalize: a normal spelling is its own, but where an escaped dot segment
// with parameters becomes a plain one. TestPathsAreReadAsByEnvoy of envoy/proxy tests what is normal.
func FuzzNormalize(f *testing.F) {
	f.Add("/a/%2e%2e//b?c")
	f.Add(`/a%2f..\%5cb`)
	f.Fuzz(func(t *testing.T, target string) {
		once, _, err := Normalize(target)
		if err != nil || dotParameters.MatchString(once) {
			return
		}
		twice, redirect, err := Normalize(once)
		require.NoError(t, err)
		require.False(t, redirect)
		require.Equal(t, once, twice)
	})
}
