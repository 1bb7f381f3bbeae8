//go:build sluice_other

package host

// other makes a binary whose code differs from the plain one, for tests of
// replacing it.
//
//go:wasmexport sluice_other
func other() {}
