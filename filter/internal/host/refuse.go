//go:build !sluice_refuse

package host

import "github.com/sluice-ratelimit/sluice/shared/policy"

// refuses says why this build does not take a valid policy; "" = it does. Only
// a build for tests of refusal has reasons of its own.
func refuses(*policy.Policy) string { return "" }
