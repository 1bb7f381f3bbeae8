package ports

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve binds a socket to a port of all addresses and keeps it. Were it bound to
// one address, a connection from another could take the port from a program that
// listens on all.
func reserve() (port int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("let a port be reused: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return 0, fmt.Errorf("bind a socket: %w", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("ask for a socket's port: %w", err)
	}
	return address.(*unix.SockaddrInet4).Port, nil
}
