// Package ports finds free ports for programs that are started by tests and by
// measurements.
//
// Its invariant: a port that it has given stays free for whoever names it. It must
// not import another package of this module.
package ports

import "fmt"

// Free are ports that nobody uses at any address of this machine. On Linux they
// stay free until this process ends: a socket that does not listen is bound to each,
// so that the system gives the port to nobody who asks for any port, and uses it for
// no connection. A program that names the port can listen on it, as long as it lets
// the address be reused, as Go's listeners and Envoy's do.
func Free(n int) ([]int, error) {
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
