package envoy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/wasm"
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
	isCallback := func(name string) bool { return strings.HasPrefix(name, "proxy_on_") }
	exported := slices.DeleteFunc(slices.Clone(wasm.Exports), func(name string) bool { return !isCallback(name) })
	// Those of answers are allowed before the filter exports them.
	isEarly := func(name string) bool { return !needs{}.call(name) && !slices.Contains(exported, name) }
	require.ElementsMatch(t, exported, slices.DeleteFunc(strings.Fields(callbacks), isEarly))
	require.ElementsMatch(t, wasm.Exports, slices.Collect(maps.Keys(module.ExportedFunctions())))
}
