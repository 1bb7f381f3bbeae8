//go:build !linux

package ports

import "net"

// reserve finds a port and does not keep it.
func reserve() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
