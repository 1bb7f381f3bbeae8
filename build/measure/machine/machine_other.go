//go:build !linux

package machine

import (
	"errors"
	"runtime"
	"time"
)

var errNotLinux = errors.New("measure: only on Linux")

// CPUTime is known on Linux only.
func CPUTime(int) (time.Duration, error) { return 0, errNotLinux }

// Processor is the architecture.
func Processor() (string, error) { return runtime.GOARCH, nil }

// Cores are known on Linux only.
func Cores() ([]int, error) { return nil, errNotLinux }

// Pin works on Linux only.
func Pin(int, ...int) error { return errNotLinux }
