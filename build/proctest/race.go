//go:build race

package proctest

// Race says that the race detector watches: a program takes several times the memory
// and the time.
const Race = true
