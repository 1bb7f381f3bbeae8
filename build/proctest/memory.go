// Package proctest measures what programs take in tests: their memory (memory.go), and their time
// on a machine that has other work too (stopwatch.go). log.go keeps what they print.
//
// Its invariant: what other programs take counts as little as the system tells. No program may
// import it.
package proctest

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// statusVariable names the file in which a child leaves what the kernel says of it.
// What the kernel says of a child that has ended includes its parent's size.
const statusVariable = "SLUICE_TEST_STATUS"

// StatusInto is the environment of a child that leaves its status in that file.
func StatusInto(file string) string { return statusVariable + "=" + file }

// SaveStatus leaves the status of this process in the file that StatusInto named. A
// test program that acts as a child calls it at its end.
func SaveStatus() {
	file := os.Getenv(statusVariable)
	if file == "" {
		return
	}
	status, err := os.ReadFile("/proc/self/status")
	if err == nil {
		err = os.WriteFile(file, status, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

// Collecting is the environment of a child whose memory is bounded. The tests themselves
// run with a higher GOGC, to end sooner.
const Collecting = "GOGC=100"

// Fields of a status.
const (
	Peak     = "VmHWM" // the most memory that a process has had
	Resident = "VmRSS" // what it has now
)

// StatusOf is the file with the status of a running process.
func StatusOf(pid int) string { return fmt.Sprintf("/proc/%d/status", pid) }

// Memory is a field of a status in bytes.
func Memory(tb testing.TB, status, field string) int {
	tb.Helper()
	text, err := os.ReadFile(status)
	require.NoError(tb, err)
	m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(tb, m, "no %s in %s", field, status)
	kb, err := strconv.Atoi(string(m[1]))
	require.NoError(tb, err)
	return kb << 10
}

// Heap is how many bytes of this process's heap are in use.
func Heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Below requires that less was used than the bound. Under the race detector every
// program takes several times the memory and the time, so nothing is required there.
func Below[T cmp.Ordered](tb testing.TB, used, bound T) {
	tb.Helper()
	if !Race {
		require.Less(tb, used, bound)
	}
}
