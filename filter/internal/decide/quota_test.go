package decide

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An allotment decides if it denies, or if it has the units and their time is not over.
func TestWhetherAnAllotmentDecides(t *testing.T) {
	for _, tc := range []struct {
		of      Allotment
		decides bool
		denial  Outcome
	}{
		{Allotment{}, false, Denied},
		{Allotment{Units: 2, EndNs: 9}, false, Denied},
		{Allotment{Received: true, Units: 2, EndNs: 9}, true, Denied},
		{Allotment{Received: true, Units: 1, EndNs: 9}, false, Denied},
		{Allotment{Received: true, Units: 2, EndNs: 8}, false, Denied},
		{Allotment{Received: true, Denied: true}, true, Denied},
		{Allotment{Received: true, Denied: true, HeldBack: true}, true, HeldBack},
		{Allotment{Received: true, Denied: true, HeldBack: true, Blocked: true}, true, Blocked},
	} {
		require.Equal(t, tc.decides, tc.of.Decides(2, 8), "%+v", tc.of)
		require.Equal(t, tc.denial, tc.of.Denial(), "%+v", tc.of)
	}
}
