package wasm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The filter that Envoy gets exports Exports alone: see TestDefaultCapabilities in envoy.
func TestSetExportsRefuses(t *testing.T) {
	const begin = "\x00asm\x01\x00\x00\x00"
	for name, tt := range map[string]struct{ module, want string }{
		"nothing":         {"", "it does not begin as a module does"},
		"another version": {"\x00asm\x02\x00\x00\x00", "it does not begin as a module does"},
		"no sections":     {begin, "it has no exports"},
		"no exports":      {begin + "\x01\x01\x00", "it has no exports"},
		"a short section": {begin + "\x01\x05\x01", "section 1 ends early"},
		"a short list":    {begin + "\x07\x02\x01\x09", "its export section ends early"},
		"a long number":   {begin + "\x07\x05\xff\xff\xff\xff\x0f", "its export section ends early"},
		"another module":  {begin + "\x07\x05\x01\x01x\x00\x00", "it does not export _initialize"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := setExports([]byte(tt.module))
			require.EqualError(t, err, tt.want)
		})
	}
}

// A file that was cut off inside a section is an error.
func TestSetExportsOfACutModule(t *testing.T) {
	file, err := Filter(repository())
	require.NoError(t, err)
	module, err := os.ReadFile(file)
	require.NoError(t, err)
	again, err := setExports(module)
	require.NoError(t, err)
	require.Equal(t, module, again)
	for cut := 0; cut < len(module); cut += 1 + len(module)/997 {
		if _, err := setExports(module[:cut]); cut < len(preamble) || err == nil {
			require.ErrorContains(t, err, "it does not", "cut at %d", cut)
		}
	}
}
