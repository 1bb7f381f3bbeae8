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
		{Allotment{Units: 2, EndNs: 9}, true, Denied},
		{Allotment{Units: 1, EndNs: 9}, false, Denied},
		{Allotment{Units: 2, EndNs: 8}, false, Denied},
		{Allotment{Denied: true}, true, Denied},
		{Allotment{Denied: true, HeldBack: true}, true, HeldBack},
		{Allotment{Denied: true, HeldBack: true, Blocked: true}, true, Blocked},
	} {
		require.Equal(t, tc.decides, tc.of.Decides(2, 8), "%+v", tc.of)
		require.Equal(t, tc.denial, tc.of.Denial(), "%+v", tc.of)
	}
}
