package loading_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/measure/loading"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

func TestMeasure(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	plugin := envoy.Plugin{Wasm: filepath.Join(t.TempDir(), "smallest.wasm"), Policy: []byte("1")}
	require.NoError(t, os.WriteFile(plugin.Wasm, []byte(buildtest.Smallest), 0o600))
	got, err := loading.Measure(t.Context(), binary, 2, plugin, "2", nil)
	require.NoError(t, err)
	require.Positive(t, got.Blocked)
	require.Positive(t, got.Changed)
	require.Positive(t, got.Grown)

	require.NoError(t, os.WriteFile(plugin.Wasm, nil, 0o600))
	_, err = loading.Measure(t.Context(), binary, 1, plugin, "", nil)
	require.ErrorContains(t, err, "Envoy refused it")
}
