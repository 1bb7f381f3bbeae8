package buildtest

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime is the processor time that the calling thread has used so far. What
// else runs on the machine does not count. Call runtime.LockOSThread before.
func ThreadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read the clock of a thread: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
