package console

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// confine ends this process once it has computed for CPUSeconds or would take more
// than MaxBytes. Go's collector works harder before that.
func confine() error {
	debug.SetMemoryLimit(MaxBytes * 6 / 10)
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: CPUSeconds, Max: CPUSeconds}); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: MaxBytes, Max: MaxBytes})
}
