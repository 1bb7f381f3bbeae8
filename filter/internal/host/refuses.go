//go:build sluice_refuses

package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// takes makes a filter that refuses every policy, as one of another version
// would: what the control plane accepts, the proxy does not. It is for tests.
func takes(*policy.Policy) bool {
	proxywasm.LogCritical("sluice: policy refused: version: this build does not know policy version 1")
	return false
}
