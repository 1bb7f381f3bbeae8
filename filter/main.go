// Command filter is the data plane: what build/compile makes of it is the module that Envoy
// loads. Its entries are the exports of package host: a request comes in by onRequestHeaders.
package main

import _ "github.com/sluice-ratelimit/sluice/filter/internal/host"

func main() {}
