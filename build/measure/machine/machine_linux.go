package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

var modelName = regexp.MustCompile(`(?m)^model name\s*: (.+)$`)

// Processor is the model of the first core, or the architecture where the kernel
// does not tell.
func Processor() (string, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if found := modelName.FindSubmatch(text); found != nil {
		return string(found[1]), nil
	}
	return runtime.GOARCH, err
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
