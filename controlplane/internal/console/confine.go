package console

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// confine ends this process once it has computed for cpuSeconds or would take more
// than maxBytes. Go's collector works harder before that.
func confine() error {
	debug.SetMemoryLimit(maxBytes * 6 / 10)
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: cpuSeconds, Max: cpuSeconds}); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxBytes, Max: maxBytes})
}
