//go:build !sluice_faults

package host

// planted reports whether a fault is planted: see planted.go.
func planted(string, []byte) bool { return false }

// reportsWhole reports whether whole verdicts are asked for: see planted.go.
func reportsWhole() bool { return false }
