//go:build sluice_refuse

package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// refuses makes a filter that refuses every policy, as one of another version
// would: what the control plane accepts, the proxy does not.
func refuses(*policy.Policy) string {
	const reason = "sluice: policy refused: version: this build refuses policy version 1"
	proxywasm.LogCritical(reason)
	return reason
}
