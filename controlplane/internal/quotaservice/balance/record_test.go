package balance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func tokens(n uint32) limit.Window {
	return limit.Window{Algorithm: limit.TokenBucket, Limit: n, Burst: n, PeriodNs: minute}
}

// count has a definition of these windows count units, and returns what each of them has counted then.
func count(t *testing.T, r *Record, units uint32, windows ...limit.Window) []uint32 {
	v := viewOf(t, r, windows...)
	v.Add(units)
	return used(v)
}

// TestBucketStart: what a new bucket begins with.
func TestBucketStart(t *testing.T) {
	for _, c := range []struct {
		name       string
		took, left uint32
		fresh      limit.Window
	}{
		{"it holds more", 20, 80, tokens(200)},
		{"it holds less", 20, 50, tokens(50)},
		{"it holds less, of which some are left", 70, 30, tokens(50)},
		{"the other one has debts", 130, 0, tokens(200)},
		{"the other one is of another period", 80, 50, limit.Window{
			Algorithm: limit.TokenBucket, Limit: 50, Burst: 50, PeriodNs: second,
		}},
	} {
		r := NewRecord(base)
		count(t, r, c.took, tokens(100))
		require.Equal(t, []uint32{c.fresh.Burst - c.left}, count(t, r, 0, c.fresh), c.name)
		require.Equal(t, []uint32{c.took}, count(t, r, 0, tokens(100)), "%s: the other one stays as it is", c.name)
	}
	r := NewRecord(base)
	count(t, r, 20, tokens(100))
	count(t, r, 10, tokens(90))
	require.Equal(t, []uint32{10}, count(t, r, 0, tokens(80)), "it has 70, as the emptiest")
}

// TestBringTo: a clock that goes back a little leaves the record as it is; one that was set back moves it.
func TestBringTo(t *testing.T) {
	perMinute := limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: minute}
	for _, c := range []struct {
		to       int64
		rebased  bool
		now      int64
		usedThen uint32
	}{
		{base + second, false, base + second, 3},
		{base + minute, false, base + minute, 0},
		{base - maxAheadNs, false, base, 3},
		{base - maxAheadNs - 1, true, base - maxAheadNs - 1, 3},
	} {
		r := NewRecord(base)
		count(t, r, 3, perMinute)
		generation := r.Generation
		require.Equal(t, c.rebased, r.BringTo(c.to))
		require.Equal(t, c.rebased, generation != r.Generation, "then nothing of before can be uncounted")
		require.Equal(t, c.now, r.NowNs)
		require.Equal(t, []uint32{c.usedThen}, count(t, r, 0, perMinute))
	}
}

// TestArrangeForTooMany: a definition for whose windows there is no room leaves the record as it is.
func TestArrangeForTooMany(t *testing.T) {
	r := NewRecord(base)
	for i := range int64(quota.MaxWindows) {
		r.BringTo(base)
		w := limit.Window{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: (i + 1) * minute}
		require.EqualValues(t, 1, count(t, r, 1, w)[0])
	}
	before := r.Clone()
	another := []limit.Window{{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: second}}
	_, err := r.ArrangeFor(KeyWindows{Defined: another, Shifted: another}, nil, 0)
	require.ErrorIs(t, err, ErrWindows)
	require.Equal(t, before, r)
	r.BringTo(base + minute) // the first window ends
	require.Equal(t, []uint32{1}, count(t, r, 1, another...))
	require.True(t, r.Forget())
	require.False(t, r.Forget())
}
