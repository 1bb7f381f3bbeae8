// Package machine is what a measurement asks of the machine it runs on: the
// processor and its cores, the time and memory that processes take, children that
// end with their parent.
//
// Its invariant: it knows nothing of what is measured. It must not import another
// package of this module.
package machine

import (
	"fmt"
	"net"
)

// FreePorts are ports of the loopback address that nobody listens on.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = listener.Close() }() // after the loop, so that each port is another
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
