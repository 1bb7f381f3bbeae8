package redistest

import "syscall"

// dieWithParent has the kernel kill the server when the test dies, however.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
