package balance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func used(v *View) (units []uint32) {
	for i := range v.Windows {
		units = append(units, v.Standing(i).Used)
	}
	return units
}

// TestUndoClosesTheWindowThatTheRequestOpened: Return leaves it open, because the request was admitted.
func TestUndoClosesTheWindowThatTheRequestOpened(t *testing.T) {
	for _, c := range []struct {
		name  string
		undo  func(v *View, c *HowCounted, units uint32) (uncounted uint32, changed bool)
		endNs int64
	}{
		{"undo", (*View).Undo, base + second + minute},
		{"return", (*View).Return, base + minute},
	} {
		v := at(base, 0, perKey(9, minute))
		first := v.Take(3, base)
		v.record.Roll(base + second)
		second := v.Take(2, base+second)
		uncounted, _ := c.undo(v, &first, 3)
		require.EqualValues(t, 3, uncounted, c.name)
		require.Equal(t, []uint32{2}, used(v), c.name)
		require.Equal(t, c.endNs, v.FirstEndNs(), c.name)
		uncounted, _ = c.undo(v, &second, 2)
		require.EqualValues(t, 2, uncounted, c.name)
		require.True(t, v.record.Usages[0].IsZero(), c.name)
	}
}

// TestUnitsGoBackToWhereTheyCount: a log and a bucket count them at the end of the last lease before.
func TestUnitsGoBackToWhereTheyCount(t *testing.T) {
	for name, windows := range shapes {
		v := at(base, 0, windows...)
		first := v.Take(7, base+100*ms)
		second := v.Take(3, base)
		require.True(t, first.IsLeased() && !second.IsLeased(), name)
		uncounted, _ := v.Return(&second, 3)
		require.EqualValues(t, 3, uncounted, name)
		uncounted, _ = v.Return(&first, 7)
		require.EqualValues(t, 7, uncounted, name)
		for i := range v.Windows {
			require.True(t, v.record.Usages[i].IsZero(), name)
		}
	}
}

// TestADenialBlocksTheKey: once, or for longer with each, and what counts opens no block.
func TestADenialBlocksTheKey(t *testing.T) {
	for _, prolongs := range []bool{false, true} {
		v := at(base, 0, fixed(1, second), limit.NewBlock(minute, prolongs))
		v.Add(5)
		require.False(t, v.IsBlocked())
		require.True(t, v.BeginBlock(), "it begins")
		v.record.Roll(base + second)
		require.Equal(t, prolongs, v.BeginBlock())
		require.Equal(t, TooFew, v.OfferLease(quota.LeaseOff, &quota.Part{}).Verdict)
		v.record.Roll(base + minute)
		require.Equal(t, prolongs, v.IsBlocked())
		v.record.Roll(base + minute + second)
		require.False(t, v.IsBlocked())
	}
	require.False(t, at(base, 5, fixed(1, second)).BeginBlock(), "there is none")
}

// TestAClearedWindowHasAllLeft: also a bucket of which units are leased.
func TestAClearedWindowHasAllLeft(t *testing.T) {
	for name, windows := range shapes {
		v := at(base, 0, windows...)
		v.Take(7, base+100*ms)
		for i := range windows {
			v.Clear(i)
			if w := &windows[i]; !w.Unlimited {
				require.Equal(t, w.Left(0), v.UnusedIn(i), name)
			}
			require.Equal(t, Usage{AsOfNs: v.record.NowNs}, v.record.Usages[i], name)
		}
	}
}

// TestAClockThatIsSetBackForgetsNothing: what is leased and held ends as much later as it would have.
func TestAClockThatIsSetBackForgetsNothing(t *testing.T) {
	const back = 3600 * second
	for name, windows := range shapes {
		v := at(base, 0, windows...)
		v.Take(7, base+100*ms)
		v.record.Holders = Holders{{Worker: 1, Held: 2, NotedNs: base - second, HoldNs: holdNs}}
		before, spendBy := used(v), v.record.SpendByNs()
		v.record.setBack(base - back)
		require.Equal(t, base-back, v.record.NowNs, name)
		require.Equal(t, before, used(v), name)
		require.Equal(t, spendBy-back, v.record.SpendByNs(), name)
		v.record.Roll(base - back + holdNs - second - 1)
		require.EqualValues(t, 2, v.record.Holders.Held(), name)
		v.record.Roll(base - back + holdNs - second)
		require.Zero(t, v.record.Holders.Held(), name)
	}
}

// TestALeaseOfABucketCountsAtItsEnd: 4 units of a bucket that gains 10 in a second count when the lease ends. Units
// that are counted after them, and may be spent until before, count then too.
func TestALeaseOfABucketCountsAtItsEnd(t *testing.T) {
	v := at(base, 50, bucket(10, second, 100))
	v.Take(4, base+second)
	v.Take(1, base+second/2)
	require.Equal(t, base+second, v.record.SpendByNs())
	require.EqualValues(t, 50-5, v.UnusedIn(0))
	v.record.Roll(base + second)
	require.Equal(t, []uint32{50 - 10 + 5}, used(v))

	full := at(base, 0, bucket(10, second, 100))
	full.Take(4, base+second)
	full.record.Roll(base + second)
	require.Equal(t, []uint32{4}, used(full), "a full bucket gains nothing before them")
}
