// Package machine is what a measurement has to know of the machine that it runs
// on, and has to ask of it: the processor, its cores, the time that processes
// have used of it, ports that nobody listens on.
//
// Its invariant: it knows nothing of what is measured. It must not import a
// package of this module: whatever measures stands on it.
package machine

import "fmt"

// FreePorts are ports of the loopback address that nobody listens on. On Linux they
// stay free until this process ends: a socket that does not listen is bound to each,
// so that the system gives the port to nobody who asks for any port, and uses it for
// no connection. A program that names the port can listen on it, as long as it lets
// the address be reused, as Go's listeners and Envoy's do.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		port, err := reserve()
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}
