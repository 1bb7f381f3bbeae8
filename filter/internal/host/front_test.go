package host

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

// The grafts read and write this struct where their package draws it.
func TestFrontIsAsTheGraftsKnowIt(t *testing.T) {
	require.Equal(t, "1", graft.Layout, "as in the name of layout's export")
	require.Equal(t, []uintptr{0, 4, 8, 16, 24, 32}, []uintptr{
		unsafe.Offsetof(front.active), unsafe.Offsetof(front.created), unsafe.Offsetof(front.root),
		unsafe.Offsetof(front.next), unsafe.Offsetof(front.end), unsafe.Offsetof(front.held),
	})
	require.Len(t, front.held, graft.Slots)
}
