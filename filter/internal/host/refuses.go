//go:build sluice_refuses

package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// takes makes a filter that refuses every policy, also those that the control
// plane accepts, as a filter of another version would. It is for tests.
func takes(*policy.Policy) bool {
	proxywasm.LogCritical("sluice: policy refused: version: this build does not know policy version 1")
	return false
}
