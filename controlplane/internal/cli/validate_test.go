package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What leases take is told where there are some, behind what was always told.
func TestMemoryOfLeasesIsPrinted(t *testing.T) {
	for _, c := range []struct {
		leases uint64
		want   string
	}{
		{0, ""},
		{18 << 10, "and at most 18 KiB for leases in each of its workers\n"},
		{71 << 20, "and at most 71.0 MiB for leases in each of its workers\n"},
	} {
		var b strings.Builder
		require.NoError(t, (&memory{Counters: 1, Keys: 7, Slots: 8, Bytes: 1 << 20, LeaseBytes: c.leases}).print(&b))
		require.Equal(t, "1 counter for 7 live keys in 8 slots\nat most 1.0 MiB of memory in one Envoy, and up to 0.0 MiB more until "+
			"the windows of renamed or removed counters have ended\n"+c.want, b.String())
	}
}
