// Command filter is the data plane: what build/graft makes of it is the module
// that Envoy loads.
package main

import "github.com/sluice-ratelimit/sluice/filter/internal/host"

func init() { host.Register() }

func main() {}
