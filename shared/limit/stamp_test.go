package limit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStamps(t *testing.T) {
	for _, hash := range []uint64{0, 1, 2046, 2047, 1<<64 - 1} {
		stamp := NewStamp(hash)
		require.EqualValues(t, 1, stamp&1)
		require.Greater(t, stamp, uint16(1), "1 ns is a time without a stamp of its own")
		require.LessOrEqual(t, stamp, uint16(stampMask))
		w := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second, Stamp: stamp}
		for _, ns := range []int64{1, 4095, 4096, 4097, 1_700_000_000*second + 1} {
			got := w.stamped(ns)
			require.EqualValues(t, stamp, stampOf(got))
			require.GreaterOrEqual(t, got, ns)
			require.Less(t, got, ns+stampMask+1)
			require.Equal(t, got, w.stamped(got), "stamping again changes nothing")
			require.False(t, w.stale(got))
			shifted := shifted(w, Usage{EndNs: got}, -12345)
			require.False(t, w.stale(shifted.EndNs), "a shift keeps the stamp")
			require.GreaterOrEqual(t, shifted.EndNs, got-12345)
		}
	}
	plain := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second}
	for _, ns := range []int64{2, 3, 77 * second} {
		require.Zero(t, stampOf(plain.stamped(ns)))
		require.False(t, plain.stale(ns), "without overrides no time is stale")
	}
}

// A bucket that is never full is so however often its time is stamped anew: lapses are charged to
// one of unknown size again and again, and configurations with another stamp write it.
func TestStampsOfTheLatestInstant(t *testing.T) {
	ns := maxInstant
	for i := range int64(100) {
		ns = withStamp(ns, []int64{foreignStamp, 0, 7, stampMask, 3}[i%5])
		require.GreaterOrEqual(t, ns, maxInstant)
	}
	require.LessOrEqual(t, ns, maxInstant+stampMask)
	bucket := Window{Algorithm: TokenBucket, Limit: 1, Burst: 9, PeriodNs: second}
	require.GreaterOrEqual(t, shifted(bucket, Usage{EndNs: ns}, second).EndNs, maxInstant, "nor where a floor is ahead of the clock")
}

func TestFill(t *testing.T) {
	w := Window{Algorithm: TokenBucket, Limit: 3, Burst: 10, PeriodNs: second}
	require.Equal(t, 10*second/3+1, w.Fill())
	unlimited, never := w, w
	unlimited.Unlimited, never.Limit = true, 0
	require.Zero(t, unlimited.Fill())
	require.Zero(t, never.Fill())
	require.Zero(t, (&Window{Algorithm: FixedWindow, Limit: 3, PeriodNs: second}).Fill())
}
