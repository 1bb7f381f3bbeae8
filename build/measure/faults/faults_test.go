package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLine(t *testing.T) {
	r := row{Fault: "x", Runs: 3, Requests: 900, Rate: 299.6, WaitMs: 110.4, TookMs: 119.5}
	require.Equal(t, "x | 3 | 900 | 300 | 0 | 0 | 0 | 110 | 120", r.line())
	r.Failed, r.Ended, r.Over, r.Local, r.MayLocal = 1, 2, 3, 4, 90
	require.Equal(t, "x | 3 | 900 | 300 | 1, and 2 that it had | **3**, promised ≤ 0 | 4 of ≤ 90 | 110 | 120", r.line())
}
