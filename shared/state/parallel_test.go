//go:build !tinygo

package state

import "sync"

// inParallel runs do once for each of so many workers, all at a time.
func inParallel(workers int, do func(worker int)) {
	var wait sync.WaitGroup
	for n := range workers {
		wait.Go(func() { do(n) })
	}
	wait.Wait()
}
