package replay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Windows of months are told apart by the calendar.
func TestUseByMonths(t *testing.T) {
	c := newClients(&policy.Rule{Limits: []policy.Limit{{Window: limit.NewCalendar(1, 0, 0)}, {Window: limit.NewCalendar(12, 0, 0)}}}, &room{1, 100})
	i, known := c.find([]byte("a"))
	require.True(t, known)
	for _, day := range []string{"2027-12-31", "2028-01-01", "2028-01-31", "2028-02-01", "2028-02-29", "2028-02-29", "2028-03-01", "2029-01-01"} {
		at, err := time.Parse(time.DateOnly, day)
		require.NoError(t, err)
		c.use(i, at.UnixNano(), 1)
	}
	require.Equal(t, []Uses{{1: 3, 2: 1, 3: 1}, {1: 2, 6: 1}}, c.uses())
}

// A timeline that becomes wider counts as one that was as wide from the start.
func TestTimeline(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		at := dice.Int64N(4e18)
		line := newTimeline(at)
		line.columns = 2
		var all []int64
		for range 1 + dice.IntN(300) {
			all = append(all, at)
			line.at(at)[1]++
			at += dice.Int64N(1 + int64(1)<<dice.IntN(52))
		}
		r := line.report()
		want := make([]int64, r.Count)
		for _, ns := range all {
			want[(ns-r.StartNs)/r.WidthNs]++
		}
		require.Equal(t, want, line.column(1))
		require.LessOrEqual(t, r.Count, MaxPoints)
		require.Zero(t, r.StartNs%r.WidthNs)
	}
}
