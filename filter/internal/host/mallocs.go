//go:build sluice_variant && wasip1

package host

import "runtime"

// mallocs returns how often this VM has allocated memory. The variant of tests has it.
//
//go:wasmexport sluice_mallocs
func mallocs() uint64 {
	runtime.ReadMemStats(&memStats)
	return memStats.Mallocs
}

var memStats runtime.MemStats
