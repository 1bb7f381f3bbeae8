package decision

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

func TestLoading(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	b := &bench{envoy: binary}
	require.NoError(t, b.start())
	defer b.close()
	plugin := envoy.Plugin{Wasm: filepath.Join(t.TempDir(), "smallest.wasm"), Policy: []byte("1")}
	require.NoError(t, os.WriteFile(plugin.Wasm, []byte(buildtest.Smallest), 0o600))
	got, err := b.loading(t.Context(), 2, plugin, "2")
	require.NoError(t, err)
	require.Positive(t, got.blocked)
	require.Positive(t, got.changed)
	require.Positive(t, got.grown)

	require.NoError(t, os.WriteFile(plugin.Wasm, nil, 0o600))
	_, err = b.loading(t.Context(), 1, plugin, "")
	require.ErrorContains(t, err, "Envoy refused it")
}
