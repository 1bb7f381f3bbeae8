//go:build linux

// Package decision measures what one decision costs in real Envoys: the CPU time of the
// processes for a request, latency at a fixed rate, memory and load time, of the filter,
// of other limiters and of the floors below them. `make bench` and `make bench-cluster`
// run its tests with so many rounds; without any, they only see that all of it works.
//
// Its invariant: a figure is a difference between listeners of the same processes, alike
// but for the filters in question, that are loaded in short turns one after the other. Two
// listeners that do not differ are measured too: they show what the method cannot tell
// apart. It must not import the filter or the control plane.
package decision

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bench is what all measurements of a run share.
type bench struct {
	wasm, against     string // paths of the filter, and of another build that it is measured against
	sluice, ratelimit string // paths of the command line and of envoyproxy/ratelimit
	front             string // path of what is measured beside envoyproxy/ratelimit
	pairs             int    // turns of each listener of a case
	turn              time.Duration
	warmUp            time.Duration // of each listener: engines compile what is hot anew

	upstream   int   // port
	cores, one []int // all processors; the first alone, which is Envoy's
}

// start takes the place of a run: Envoy gets the first core. This process, with the load, the
// upstream and services, gets the second.
func (b *bench) start(t testing.TB) {
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			b.cores = append(b.cores, i)
		}
	}
	require.Greater(t, len(b.cores), 1, "it takes two processors, one of them for Envoy alone")
	b.one = b.cores[:1]
	pin(t, os.Getpid(), b.cores[1])
	before := runtime.GOMAXPROCS(1) // more threads than cores would only take turns
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		pin(t, os.Getpid(), b.cores...)
	})
	b.upstream = startUpstream(t)
}

// pin confines every thread of a process, and those they will start, to the cores.
func pin(t testing.TB, pid int, cores ...int) {
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
	require.NoError(t, err)
	require.NotEmpty(t, tasks, "process %d has no threads", pid)
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		require.NoError(t, err)
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			require.NoDirExists(t, task, err)
		}
	}
}

// quantile is the value below which that share of the list lies, interpolated; NaN where
// the list is empty.
func quantile(list []float64, share float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(list))
	at := share * float64(len(sorted)-1)
	below := int(at)
	return sorted[below] + (sorted[min(below+1, len(sorted)-1)]-sorted[below])*(at-float64(below))
}

// of is a quantile of a figure of each item.
func of[T any](items []T, share float64, figure func(T) float64) float64 {
	var list []float64
	for _, item := range items {
		list = append(list, figure(item))
	}
	return quantile(list, share)
}

func median[T any](items []T, figure func(T) float64) float64 { return of(items, 0.5, figure) }
