package child

import "syscall"

// dieWithParent has the kernel kill the child when this process ends, however.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
