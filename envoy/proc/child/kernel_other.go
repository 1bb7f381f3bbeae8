//go:build !linux

package child

import (
	"errors"
	"syscall"
	"time"
)

var errNotLinux = errors.New("measure a process: only on Linux")

// dieWithParent does nothing outside Linux: whoever starts a child has to kill it.
func dieWithParent() *syscall.SysProcAttr { return nil }

// CPUTime returns the processor time that a process has used so far.
func CPUTime(int) (time.Duration, error) { return 0, errNotLinux }

// RSS returns how many bytes of memory the child has resident.
func (c *Child) RSS() (uint64, error) { return 0, errNotLinux }
