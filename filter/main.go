// Command filter is the data plane: what build/compile makes of it is the module that Envoy
// loads. Its entries are in package host: a request comes in by onRequestHeaders.
package main

import "github.com/sluice-ratelimit/sluice/filter/internal/host"

func init() { host.Register() }

func main() {}
