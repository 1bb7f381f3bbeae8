//go:build !race

package proctest

// Race says that the race detector watches.
const Race = false
