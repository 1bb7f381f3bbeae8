//go:build !sluice_refuses

package host

import (
	"slices"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// takes reports whether this build takes a valid policy. This build leases nothing
// yet, and without leases a rule of scope cluster would count in each proxy alone.
func takes(p *policy.Policy) bool {
	isCluster := func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }
	if slices.ContainsFunc(p.Rules, isCluster) {
		proxywasm.LogCritical("sluice: policy refused: scope: this build does not lease units of a cluster")
		return false
	}
	return true
}
