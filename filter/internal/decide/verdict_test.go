package decide

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	settles = `{"name":"r","limits":["100/1h"],"settle":{}}`
	slots   = `{"name":"r","limits":["9"],"algorithm":"concurrency"}`
)

// Where nobody waits for an answer, a request is charged what it has held, and nothing for a slot.
func TestReleaseChargesTheCost(t *testing.T) {
	for rule, charged := range map[string]uint32{settles: 2, slots: 0} {
		p := &purse{left: 9}
		v := begin(t, rule, p)
		v.Decide(1)
		require.True(t, v.Allowed)
		v.Subjects[0].Hold.Units = 2
		holds := v.BeginHolds(nil)
		require.Len(t, holds, 1)
		require.Equal(t, state.HeldTotal{Units: 2, Streams: 1}, v.Subjects[0].Rule.Metrics.Holding)
		holds[0].Settle(0, metrics.ByAnswer, 1)
		v.Release()
		require.Equal(t, charged, p.charged, rule)
		require.Equal(t, state.HeldTotal{}, v.Subjects[0].Rule.Metrics.Holding)
	}
}
