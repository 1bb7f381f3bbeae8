package loading_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/loading"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// smallest is a module that does nothing, in as few bytes as Envoy accepts.
const smallest = "\x00asm\x01\x00\x00\x00" +
	"\x01\x09\x02\x60\x00\x00\x60\x01\x7f\x01\x7f" + // types: func(), func(i32) i32
	"\x03\x03\x02\x00\x01" + // one function of each
	"\x05\x03\x01\x00\x01" + // a page of memory
	"\x07\x3f\x03" + // three exports
	"\x06memory\x02\x00" +
	"\x17proxy_abi_version_0_2_0\x00\x00" +
	"\x18proxy_on_memory_allocate\x00\x01" +
	"\x0a\x09\x02\x02\x00\x0b\x04\x00\x41\x00\x0b" // return; return 0

func TestMeasure(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	plugin := envoy.Plugin{Wasm: filepath.Join(t.TempDir(), "smallest.wasm"), Policy: []byte("1")}
	require.NoError(t, os.WriteFile(plugin.Wasm, []byte(smallest), 0o600))
	got, err := loading.Measure(t.Context(), binary, 2, plugin, []byte("2"), nil)
	require.NoError(t, err)
	require.Positive(t, got.Blocked)
	require.Positive(t, got.Changed)
	require.Positive(t, got.Grown)

	require.NoError(t, os.WriteFile(plugin.Wasm, nil, 0o600))
	_, err = loading.Measure(t.Context(), binary, 1, plugin, nil, nil)
	require.ErrorContains(t, err, "Envoy refused it")
}
