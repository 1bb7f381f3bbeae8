//go:build !linux

package child

import "syscall"

// dieWithParent has no equal outside Linux; who starts a child kills it.
func dieWithParent() *syscall.SysProcAttr { return nil }
