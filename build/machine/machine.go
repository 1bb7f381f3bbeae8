// Package machine is what a measurement has to know of the machine that it runs
// on, and has to ask of it: the processor, its cores, the time that processes
// have used of it, ports that nobody listens on.
//
// Its invariant: it knows nothing of what is measured. It must not import a
// package of this module: whatever measures stands on it.
package machine

import (
	"fmt"
	"net"
)

// FreePorts are some of the loopback address that nobody listens on.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = listener.Close() }() // in the end, so that each is another
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
