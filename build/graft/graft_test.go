package graft_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

// compiled is the filter with its grafts, and its bytes.
func compiled(t *testing.T) (wazero.CompiledModule, []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "filter.wasm")
	require.NoError(t, graft.Compile(filepath.Join("..", ".."), file))
	wasm, err := os.ReadFile(file)
	require.NoError(t, err)
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { require.NoError(t, runtime.Close(t.Context())) })
	m, err := runtime.CompileModule(t.Context(), wasm)
	require.NoError(t, err)
	return m, wasm
}

// Envoy calls whatever callback is exported, so only those are in which there is
// something to do.
func TestExports(t *testing.T) {
	t.Setenv("GOFLAGS", "-buildvcs=true")
	m, wasm := compiled(t)
	require.False(t, bytes.Contains(wasm, []byte("vcs.revision")), "the same source makes the same filter at every commit")

	var names []string
	for name := range m.ExportedFunctions() {
		if !slices.Contains(graft.StreamCallbacks, name) {
			names = append(names, name)
		}
	}
	require.ElementsMatch(t, append([]string{"_initialize", "malloc", "proxy_abi_version_0_2_0"}, graft.Callbacks...), names)

	_, err := graft.Apply(wasm)
	require.EqualError(t, err, "graft module: it does not export sluice_front_1", "grafted twice")
}

func TestApplyRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ wasm, want string }{
		"nothing":         {"", "read module: it does not begin as a module does"},
		"another version": {"\x00asm\x02\x00\x00\x00", "read module: it does not begin as a module does"},
		"no sections":     {"\x00asm\x01\x00\x00\x00", "read module: it has no section 1"},
		"a long list":     {"\x00asm\x01\x00\x00\x00\x01\x01\x00\x02\x05\xff\xff\xff\xff\x0f\x03\x01\x00\x06\x01\x00\x07\x01\x00\x0a\x01\x00", "read module: its import section ends early"},
		"long exports":    {"\x00asm\x01\x00\x00\x00\x01\x01\x00\x03\x01\x00\x06\x01\x00\x07\x05\xff\xff\xff\xff\x0f\x0a\x01\x00", "read module: its export section ends early"},
		"a short section": {"\x00asm\x01\x00\x00\x00\x01\x05\x01", "read module: section 1 ends early"},
		"nothing in it":   {"\x00asm\x01\x00\x00\x00\x01\x01\x00\x03\x01\x00\x06\x01\x00\x07\x01\x00\x0a\x01\x00", "graft module: it does not export _initialize"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := graft.Apply([]byte(tt.wasm))
			require.EqualError(t, err, tt.want)
		})
	}
}

// A file that was cut off inside a section is an error.
func TestApplyToACutModule(t *testing.T) {
	_, wasm := compiled(t)
	for cut := 0; cut < len(wasm); cut += 1 + len(wasm)/997 {
		_, err := graft.Apply(wasm[:cut])
		require.Error(t, err, "cut at %d", cut)
	}
}
