package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// CPUTime is the processor time that all threads of a process have used so far.
// The kernel's clock of it counts nanoseconds, not ticks.
func CPUTime(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3): the complement of the process id above three
	// bits, of which 2 asks for what the scheduler counts.
	clock := int32(^pid<<3 | 2)
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0, fmt.Errorf("read the clock of process %d: %w", pid, err)
	}
	return time.Duration(now.Nano()), nil
}

// Processor is the model of the first core, or the architecture where the kernel
// does not tell.
func Processor() (string, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	cores, err := fs.CPUInfo()
	if err != nil || len(cores) == 0 || cores[0].ModelName == "" {
		return runtime.GOARCH, err
	}
	return cores[0].ModelName, nil
}

// Cores are the processors that this program may use.
func Cores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for processors: %w", err)
	}
	var list []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list, nil
}

// Pin confines every thread of a process, and those they will start, to the
// cores.
func Pin(pid int, to ...int) error {
	var set unix.CPUSet
	for _, core := range to {
		set.Set(core)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return fmt.Errorf("pin process %d: it has no threads", pid)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return fmt.Errorf("pin process %d: %w", pid, err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !gone(task) {
			return fmt.Errorf("pin process %d: %w", pid, err)
		}
	}
	return nil
}

func gone(task string) bool {
	_, err := os.Stat(task)
	return err != nil
}
