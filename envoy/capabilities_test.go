package envoy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// callbackOf is the callback by which the SDK calls a method.
var callbackOf = map[string]string{
	"OnVMStart": "proxy_on_vm_start", "OnPluginStart": "proxy_on_configure", "OnPluginDone": "proxy_on_done", "OnTick": "proxy_on_tick",
	"OnQueueReady": "proxy_on_queue_ready", "OnHttpStreamDone": "proxy_on_log",
	"OnHttpRequestHeaders": "proxy_on_request_headers", "OnHttpRequestBody": "proxy_on_request_body", "OnHttpRequestTrailers": "proxy_on_request_trailers",
	"OnHttpResponseHeaders": "proxy_on_response_headers", "OnHttpResponseBody": "proxy_on_response_body", "OnHttpResponseTrailers": "proxy_on_response_trailers",
}

// TestDefaultCapabilities: every import of the filter and every callback it has a
// method for is allowed, and nothing is allowed that it does not export.
func TestDefaultCapabilities(t *testing.T) {
	allowed := DefaultCapabilities()
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(t.Context())
	module, err := runtime.CompileModule(t.Context(), buildtest.Wasm(t))
	require.NoError(t, err)
	for _, function := range module.ImportedFunctions() {
		_, name, _ := function.Import()
		require.Contains(t, allowed, name)
	}
	exported := module.ExportedFunctions()
	for _, name := range strings.Fields(callbacks) {
		require.Contains(t, exported, name)
	}
	used := usedCallbacks(t)
	require.NotEmpty(t, used)
	require.Subset(t, strings.Fields(callbacks), used)
	for name := range exported {
		if strings.HasPrefix(name, "proxy_on_http_") || strings.HasSuffix(name, "_body") || strings.HasSuffix(name, "_trailers") {
			require.NotContains(t, allowed, name)
		}
	}
}

// usedCallbacks are the callbacks of the methods that filter/internal/host has.
func usedCallbacks(t *testing.T) (used []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(buildtest.Root(), "filter", "internal", "host", "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declaration := range file.Decls {
			method, ok := declaration.(*ast.FuncDecl)
			if !ok || method.Recv == nil || !strings.HasPrefix(method.Name.Name, "On") {
				continue
			}
			callback, known := callbackOf[method.Name.Name]
			require.True(t, known, "which callback is %s?", method.Name.Name)
			if !slices.Contains(used, callback) {
				used = append(used, callback)
			}
		}
	}
	return used
}
