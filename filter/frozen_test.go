package main_test

import (
	"compress/gzip"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// frozen returns the filter as commit 08039622240d built it, the last one before TinyGo
// compiled it, with `go run ./build/compile -o FILE` and `gzip -9 -n`. It reads and writes
// format 1 of the records, and stays as it is as long as that is supported; each further
// format gets a file of its own.
func frozen(t *testing.T) []byte {
	t.Helper()
	file, err := os.Open("testdata/format1.wasm.gz")
	require.NoError(t, err)
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	require.NoError(t, err)
	b, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return b
}

// Two releases of the filter count in one store, as they do during a rollout, and
// neither loses what the other has counted.
func TestOlderModuleBesideThisOne(t *testing.T) {
	for name, rule := range map[string]string{
		"aligned": `"limits":["100/366d"]`,
		"per key": `"limits":["100/366d"],"algorithm":"fixed_window_per_key"`,
		"layered": `"limits":["100/366d",{"requests":120,"per":"365d","algorithm":"fixed_window_per_key"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			store := sim.NewStore()
			shared := func(o *sim.Options) { o.Store = store }
			fresh, old := start(t, shared), start(t, shared, func(o *sim.Options) { o.Wasm = frozen(t) })
			config := policy(`{"name":"r","key":[{"header":"x-user-id"}],` + rule + `}`)
			require.NoError(t, fresh.Configure(config))
			require.NoError(t, old.Configure(config))
			passed := 0
			for i := range 200 {
				b := fresh
				if i%3 == 0 {
					b = old
				}
				if b.serve(t, 0, alice).Status == 200 {
					passed++
				}
			}
			require.Equal(t, 100, passed)
		})
	}
}
