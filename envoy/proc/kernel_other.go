//go:build !linux

package proc

import (
	"errors"
	"time"
)

var errNotLinux = errors.New("measure envoy: only on Linux")

// CPU is the processor time Envoy has used so far.
func (p *Process) CPU() (time.Duration, error) { return 0, errNotLinux }

// RSS is how many bytes of memory Envoy has resident.
func (p *Process) RSS() (uint64, error) { return 0, errNotLinux }
