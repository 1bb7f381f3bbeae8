//go:build !sluice_refuses

package host

import "github.com/sluice-ratelimit/sluice/shared/policy"

// takes reports whether this build takes a valid policy.
func takes(*policy.Policy) bool { return true }
