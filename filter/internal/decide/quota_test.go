package decide

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A grant decides if it denies, or if it has the units and their time is not over.
func TestWhetherAGrantDecides(t *testing.T) {
	for _, tc := range []struct {
		grant   Grant
		decides bool
		denial  Outcome
	}{
		{Grant{}, false, Denied},
		{Grant{Units: 2, EndNs: 9}, false, Denied},
		{Grant{Received: true, Units: 2, EndNs: 9}, true, Denied},
		{Grant{Received: true, Units: 1, EndNs: 9}, false, Denied},
		{Grant{Received: true, Units: 2, EndNs: 8}, false, Denied},
		{Grant{Received: true, Denied: true}, true, Denied},
		{Grant{Received: true, Denied: true, HeldBack: true}, true, HeldBack},
		{Grant{Received: true, Denied: true, HeldBack: true, Blocked: true}, true, Blocked},
	} {
		require.Equal(t, tc.decides, tc.grant.Decides(2, 8), "%+v", tc.grant)
		require.Equal(t, tc.denial, tc.grant.Denial(), "%+v", tc.grant)
	}
}
