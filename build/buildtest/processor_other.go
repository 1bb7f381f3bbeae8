//go:build !linux

package buildtest

import (
	"errors"
	"time"
)

var (
	start       = time.Now()
	errNotLinux = errors.New("known on Linux only")
)

// ThreadTime is the time that has passed, where threads have no clock.
func ThreadTime() (time.Duration, error) { return time.Since(start), nil }

func machineTime() (used, all time.Duration, err error) { return 0, 0, errNotLinux }
