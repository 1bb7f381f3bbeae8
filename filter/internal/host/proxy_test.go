package host

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What is taken stays apart until the arena is emptied, whatever the sizes; and
// emptied, it holds on to no more than the chunks it keeps.
func TestArena(t *testing.T) {
	var a bump
	for range 3 {
		a.reset()
		var taken [][]byte
		for i, size := range []int{1, 8, 0, 60_000, 60_000, 100, 200_000, 3, chunkBytes, 60_000, 60_000, chunkBytes + 1, 7} {
			p := a.take(uint32(size))
			require.Zero(t, uintptr(p)%8)
			b := unsafe.Slice((*byte)(p), size)
			base := uintptr(unsafe.Pointer(unsafe.SliceData(a.whole)))
			require.GreaterOrEqual(t, uintptr(p), base)
			require.LessOrEqual(t, uintptr(p)+uintptr(size), base+uintptr(len(a.whole)))
			for j := range b {
				b[j] = byte(i)
			}
			taken = append(taken, b)
		}
		for i, b := range taken {
			for j := range b {
				require.Equal(t, byte(i), b[j])
			}
		}
	}
	a.reset()
	require.LessOrEqual(t, len(a.chunks), maxIdleChunks)
	for _, c := range a.chunks[:cap(a.chunks)] {
		require.Contains(t, []int{0, chunkBytes}, len(c))
	}
}

func TestArenaKeepsItsChunks(t *testing.T) {
	var a bump
	a.reset()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		a.reset()
		for range maxIdleChunks {
			a.take(60_000)
		}
	}))
}

func TestAppendValues(t *testing.T) {
	pairs := []string{"a", "1", "b", "", "a", "2,3", "", "x", "a", ""}
	text := binary.LittleEndian.AppendUint32(nil, uint32(len(pairs)/2))
	for _, s := range pairs {
		text = binary.LittleEndian.AppendUint32(text, uint32(len(s)))
	}
	for _, s := range pairs {
		text = append(append(text, s...), 0)
	}
	require.Equal(t, []string{"0", "1", "2,3", ""}, appendValues([]string{"0"}, string(text), "a"))
	require.Equal(t, []string{""}, appendValues(nil, string(text), "b"))
	require.Empty(t, appendValues(nil, string(text), "c"))
	for cut := range text { // whatever it is, it ends
		require.LessOrEqual(t, len(appendValues(nil, string(text[:cut]), "a")), 3)
		wild := append([]byte(nil), text...)
		wild[cut] = 0xff
		require.LessOrEqual(t, len(appendValues(nil, string(wild), "a")), 3)
	}
}
