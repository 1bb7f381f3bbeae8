package balance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// yearly is the longest period: within that, a window pays one limit, and a bucket gains one.
const yearly = limit.MaxPeriodNs

// TestAChargeIsTwoLimitsAtLeast: however little a window pays or gains within the longest period.
func TestAChargeIsTwoLimitsAtLeast(t *testing.T) {
	pays := fixed(10, yearly)
	pays.Pays = 10
	v := at(base, 0, pays, bucket(1, yearly, 100), bucket(500, yearly, 100))
	for i := range v.Windows {
		v.window(i).charge(1000)
	}
	require.Equal(t, []uint32{1000, 200, 500}, used(v), "an open window counts all, until it has ended")
	v.State.Roll(v.FirstEndNs())
	require.EqualValues(t, 20-10, v.State.Usages[0].Used)
}

// TestASilentWorkerIsChargedInALog: of a State that was read from bytes, whose log has no limit.
func TestASilentWorkerIsChargedInALog(t *testing.T) {
	v := at(base, 2, logOf(10, minute))
	v.State.Windows = []limit.Window{{Algorithm: limit.SlidingWindowLog, PeriodNs: minute}}
	v.State.Holders = Holders{{Worker: 1, Held: 5, NotedNs: base, HoldNs: holdNs}}
	v.State.Roll(base + holdNs)
	require.Equal(t, []uint32{7}, used(v))
	require.Len(t, v.State.Usages[0].Log, 7)
}

// TestAClaimCountsALimitAtMost: a bucket that lacks two bursts takes no more of it.
func TestAClaimCountsALimitAtMost(t *testing.T) {
	v := at(base, 40, fixed(50, minute), bucket(10, second, 100), unlimited(minute))
	for _, c := range []struct {
		units uint32
		used  []uint32
	}{
		{5, []uint32{45, 45, 45}},
		{1000, []uint32{95, 145, 1045}},
		{1000, []uint32{145, 200, 2045}},
		{1, []uint32{146, 200, 2046}},
	} {
		v.AddClaimed(c.units)
		require.Equal(t, c.used, used(v))
	}
	v.AddClaimedIn(0, 7)
	require.Equal(t, []uint32{153, 200, 2046}, used(v))
}

// TestChargesTakeALimitAtATime: and no longer than the longest debt.
func TestChargesTakeALimitAtATime(t *testing.T) {
	pays := fixed(100, 3600*second)
	pays.Pays = 100
	for _, c := range []struct {
		window limit.Window
		held   uint32
		most   int64
	}{
		{limit.NewBlock(minute, false), 9, 0},
		{fixed(100, 3600*second), 250, 3600 * second},
		{pays, 100, 3600 * second},
		{pays, 250, 3 * 3600 * second},
		{pays, saturated, limit.MaxPeriodNs + 3600*second},
		{counter(100, minute), 250, 2 * minute},
		{logOf(100, minute), 250, minute + 600*ms},
		{bucket(10, second, 100), 100, 20*second + 100*ms},
		{bucket(10, second, 100), 101, 2 * (20*second + 100*ms)},
		{bucket(10, second, 100), 250, 3 * (20*second + 100*ms)},
	} {
		require.Equal(t, c.most, at(base, 0, c.window).window(0).chargedNs(c.held), "%+v", c)
	}
}
