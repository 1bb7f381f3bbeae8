package host

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

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
