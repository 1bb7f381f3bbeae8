package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is the processor time that a process has used so far, all its
// threads together, by the kernel's clock of it: nanoseconds, not ticks.
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

// ThreadTime is the processor time that the calling thread has used so far. What
// else runs on the machine does not count. Call runtime.LockOSThread before.
func ThreadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read the clock of a thread: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// reserve binds a socket to a port of the loopback address and keeps it.
func reserve() (port int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("let a port be reused: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind a socket: %w", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("ask for a socket's port: %w", err)
	}
	return address.(*unix.SockaddrInet4).Port, nil
}

// UsedTime is the processor time that everything on this machine has used so
// far, and what its host took from it, in steps of 10 ms.
func UsedTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the clock of the machine: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	ticks := 0
	// user nice system idle iowait irq softirq steal, as in proc(5)
	for i, field := range strings.Fields(line)[1:9] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("read the clock of the machine: %w", err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ
}

// Processor is the model of the first core, or the architecture where the kernel
// does not tell.
func Processor() (string, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("ask for the processor: %w", err)
	}
	model := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text)
	if model == nil {
		return runtime.GOARCH, nil
	}
	return string(model[1]), nil
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

// DieWithParent has the kernel kill a child when its parent ends, however.
func DieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

func gone(task string) bool {
	_, err := os.Stat(task)
	return err != nil
}
