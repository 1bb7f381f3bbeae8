package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// An allotment decides if it denies, or if it has the units and their time is not over.
func TestWhetherAnAllotmentDecides(t *testing.T) {
	left := func(units uint32, endNs int64) leased.GrantUnits {
		return leased.GrantUnits{GrantID: leased.GrantID{EndNs: endNs}, Units: units}
	}
	for _, tc := range []struct {
		of      Allotment
		decides bool
	}{
		{Allotment{}, false},
		{Allotment{GrantUnits: left(2, 9)}, true},
		{Allotment{GrantUnits: left(1, 9)}, false},
		{Allotment{GrantUnits: left(2, 8)}, false},
		{Allotment{Reason: Denied}, true},
	} {
		require.Equal(t, tc.decides, tc.of.Decides(2, 8), "%+v", tc.of)
	}
}

// A denial of the service is a block before it is units that others hold, and that before it is a limit.
func TestWhatTheServiceDeniesBy(t *testing.T) {
	require.Equal(t, NotDenied, ReasonOf(&quota.Grant{Blocked: true, HeldBack: true}))
	require.Equal(t, Denied, ReasonOf(&quota.Grant{Denied: true}))
	require.Equal(t, HeldBack, ReasonOf(&quota.Grant{Denied: true, HeldBack: true}))
	require.Equal(t, Blocked, ReasonOf(&quota.Grant{Denied: true, HeldBack: true, Blocked: true}))
}
