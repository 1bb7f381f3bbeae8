// Command filter is the data plane: built with GOOS=wasip1 GOARCH=wasm and
// -buildmode=c-shared it is the module that Envoy loads.
package main

import "github.com/sluice-ratelimit/sluice/filter/internal/host"

func init() { host.Register() }

func main() {}
