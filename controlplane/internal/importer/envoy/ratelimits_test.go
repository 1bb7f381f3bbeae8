package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of addsHost: R or H are the rate_limits that Envoy sends for a route.
func TestLimitsOfARouteAndItsHost(t *testing.T) {
	for _, tc := range []struct {
		name               string
		vhost              vhostRateLimits
		include            bool
		withOwn, withoutIt string
	}{
		{"OVERRIDE", vhostIfAlone, false, "R", "H"},
		{"OVERRIDE, with include_vh_rate_limits", vhostIfAlone, true, "RH", "H"},
		{"INCLUDE", vhostAlways, false, "RH", "H"},
		{"INCLUDE, with include_vh_rate_limits", vhostAlways, true, "RH", "H"},
		{"IGNORE", vhostNever, false, "R", ""},
		{"IGNORE, with include_vh_rate_limits", vhostNever, true, "RH", "H"},
	} {
		sent := func(limits string) string {
			if tc.vhost.addsHost(&hostRoute{include: tc.include, rateLimits: make([]rateLimit, len(limits))}) {
				limits += "H"
			}
			return limits
		}
		require.Equal(t, tc.withOwn, sent("R"), tc.name)
		require.Equal(t, tc.withoutIt, sent(""), tc.name)
	}
}
