//go:build !race

package buildtest

// Race says that the race detector watches.
const Race = false
