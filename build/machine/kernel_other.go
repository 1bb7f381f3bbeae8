//go:build !linux

package machine

import (
	"errors"
	"net"
	"runtime"
	"syscall"
	"time"
)

var errNotLinux = errors.New("measure: only on Linux")

// CPUTime is known on Linux only.
func CPUTime(int) (time.Duration, error) { return 0, errNotLinux }

// ThreadTime is known on Linux only.
func ThreadTime() (time.Duration, error) { return 0, errNotLinux }

// reserve finds a port and does not keep it.
func reserve() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// UsedTime is known on Linux only.
func UsedTime() (time.Duration, error) { return 0, errNotLinux }

// Processor is the architecture.
func Processor() (string, error) { return runtime.GOARCH, nil }

// Cores are known on Linux only.
func Cores() ([]int, error) { return nil, errNotLinux }

// Pin works on Linux only.
func Pin(int, ...int) error { return errNotLinux }

// DieWithParent asks for nothing here.
func DieWithParent() *syscall.SysProcAttr { return nil }
