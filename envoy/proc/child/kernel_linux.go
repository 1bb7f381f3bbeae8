package child

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill the child when this process ends for any reason.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// CPUTime returns the processor time that all threads of a process have used so far, by the
// kernel's clock of the process, in nanoseconds.
func CPUTime(pid int) (time.Duration, error) {
	// See clock_getcpuclockid(3): the complement of the process id, and in the lowest three
	// bits a 2 for the clock that the scheduler counts by.
	clock := int32(^pid<<3 | 2)
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0, fmt.Errorf("read the clock of process %d: %w", pid, err)
	}
	return time.Duration(now.Nano()), nil
}

// RSS returns how many bytes of memory the child has resident.
func (c *Child) RSS() (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", c.Pid()))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	var all, resident uint64 // pages
	if _, err := fmt.Sscan(string(text), &all, &resident); err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", c.Pid(), err)
	}
	return resident * uint64(os.Getpagesize()), nil
}
