//go:build !linux

package redistest

import "syscall"

// dieWithParent has no equal outside Linux; the test's cleanup remains.
func dieWithParent() *syscall.SysProcAttr { return nil }
