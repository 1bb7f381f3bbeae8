//go:build sluice_mallocs && wasip1

package host

import "runtime"

// mallocs returns how often this VM has allocated memory. It is for tests.
//
//go:wasmexport sluice_mallocs
func mallocs() uint64 {
	runtime.ReadMemStats(&memStats)
	return memStats.Mallocs
}

var memStats runtime.MemStats
