package build

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestFilterIn(t *testing.T) {
	_, err := filterIn(fstest.MapFS{"out/embed/.gitkeep": {}})
	require.ErrorIs(t, err, ErrNoFilter)

	wasm, err := filterIn(fstest.MapFS{"out/embed/sluice.wasm": {Data: []byte("\x00asm")}})
	require.NoError(t, err)
	require.Equal(t, []byte("\x00asm"), wasm)
}
