package room

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoom(t *testing.T) {
	r := New(16)
	require.True(t, r.Take("a", 10))
	require.False(t, r.Take("a", 3), "three quarters are for one")
	require.True(t, r.Take("a", 2))
	require.False(t, r.Take("b", 5), "all that there is")
	require.True(t, r.Take("b", 4))
	r.Free("a", 5)
	require.True(t, r.Take("a", 5))
	r.Free("a", 12)
	r.Free("b", 4)
	require.Equal(t, New(16), r, "nobody who has nothing is remembered")
}
