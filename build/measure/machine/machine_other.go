//go:build !linux

package machine

import (
	"errors"
	"runtime"
)

var errNotLinux = errors.New("measure: only on Linux")

// Processor is the architecture.
func Processor() (string, error) { return runtime.GOARCH, nil }

// Cores are known on Linux only.
func Cores() ([]int, error) { return nil, errNotLinux }

// Pin works on Linux only.
func Pin(int, ...int) error { return errNotLinux }
