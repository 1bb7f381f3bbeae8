//go:build tinygo

package state

// inParallel runs do once for each of so many workers, in turn: what TinyGo compiles for
// the filter has no goroutines.
func inParallel(workers int, do func(worker int)) {
	for n := range workers {
		do(n)
	}
}
