package buildtest

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Below requires that less was used than the bound. Under the race detector every
// program takes several times the memory and the time, so nothing is required there.
func Below[T cmp.Ordered](tb testing.TB, used, bound T) {
	tb.Helper()
	if !Race {
		require.Less(tb, used, bound)
	}
}
