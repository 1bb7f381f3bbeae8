package envoy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// TestDefaultCapabilities: the oldest supported Envoy offers every function that
// the filter imports, and every callback that the filter exports is allowed.
func TestDefaultCapabilities(t *testing.T) {
	allowed := DefaultCapabilities()
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(t.Context())
	module, err := runtime.CompileModule(t.Context(), buildtest.Wasm(t))
	require.NoError(t, err)
	for _, function := range module.ImportedFunctions() {
		_, name, _ := function.Import()
		require.Contains(t, allowed, name, "the oldest supported Envoy would refuse to load the filter")
	}
	exported := module.ExportedFunctions()
	for _, name := range strings.Fields(callbacks) {
		require.Contains(t, exported, name)
	}
	for name := range exported {
		if strings.HasPrefix(name, "proxy_on_") {
			require.Contains(t, allowed, name)
		}
	}
}
