package allot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An allotment decides if it denies, or if it has the units and their time is not over.
func TestWhetherAnAllotmentDecides(t *testing.T) {
	for _, tc := range []struct {
		of      Allotment
		decides bool
	}{
		{Allotment{}, false},
		{Allotment{Units: 2, EndNs: 9}, true},
		{Allotment{Units: 1, EndNs: 9}, false},
		{Allotment{Units: 2, EndNs: 8}, false},
		{Allotment{Denied: true}, true},
	} {
		require.Equal(t, tc.decides, tc.of.Decides(2, 8), "%+v", tc.of)
	}
}
