package buildtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAlone(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		passed time.Duration
		usage  usage
		want   time.Duration
	}{
		"idle":                          {2 * s, usage{0, 0, 4 * s}, 2 * s},
		"the test uses all":             {2 * s, usage{4 * s, 4 * s, 4 * s}, 2 * s},
		"half is others'":               {2 * s, usage{s, 3 * s, 4 * s}, s},
		"three quarters are others'":    {8 * s, usage{4 * s, 16 * s, 16 * s}, 2 * s},
		"clocks that differ by a tick":  {2 * s, usage{s, s - 1, 4 * s}, 2 * s},
		"all is others'":                {60 * s, usage{0, 120 * s, 120 * s}, 2 * s},
		"too soon for a tick":           {s / 1000, usage{s / 1000, 0, 0}, s / 1000},
		"a tick before it was all used": {s / 1000, usage{0, s / 100, 0}, s / 1000 / maxSlowdown},
	} {
		require.InDelta(t, c.want, alone(c.passed, c.usage), float64(time.Microsecond), name)
	}
}
