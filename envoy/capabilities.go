package envoy

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// callbacks are those that the filter may export.
const callbacks = `
	proxy_on_context_create proxy_on_vm_start proxy_on_configure proxy_on_tick
	proxy_on_request_headers proxy_on_response_headers proxy_on_delete
	proxy_on_grpc_receive proxy_on_grpc_close`

// DefaultCapabilities is the allow-list of the filter: its callbacks and all host
// functions of the oldest supported Envoy. To leave out those that it does not
// import would save nothing, and a newer binary in its place might need one. A VM
// keeps the list it was made with: a changed one takes effect with the next binary
// or vm_id.
func DefaultCapabilities() []string {
	return append(sim.HostFunctions(), strings.Fields(callbacks)...)
}
