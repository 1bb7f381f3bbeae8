package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// TestSums: what workers state wraps around nowhere.
func TestSums(t *testing.T) {
	slots := &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 5}
	s := at(base, 0, fixed(100, second))
	s.Rows = &Holders{List: []Holder{{Worker: 1, Held: saturated, SaidNs: s.NowNs, HoldNs: holdNs}, {Worker: 2, Held: 5, SaidNs: s.NowNs, HoldNs: holdNs}}}
	_, ok, _, err := s.Say(&Part{Cost: 1, Waiting: 1, Report: Report{Worker: 1, Number: 1}}, slots)
	require.NoError(t, err)
	require.False(t, ok, "the other has all 5")
	for n, l := range []Report{{Number: 2, Since: 2, Known: 9}, {Number: 3, Since: 2, Charged: 4}, {Number: 4, Since: 2, Charged: 3}} {
		l.Worker = 1
		_, _, _, err = s.Say(&Part{Report: l}, slots)
		require.NoError(t, err)
		require.EqualValues(t, []int{0, 4, 4}[n], s.Usages[0].Used)
	}
	a := Account{Held: 1}
	require.Equal(t, uint32(saturated), a.Report(1, 1, saturated).Held)
	a.Noted(1, 1)
	require.True(t, a.Due())
}

// TestWhoHoldsNothingIsNoted: no older statement counts after it. A denial leaves no row.
func TestWhoHoldsNothingIsNoted(t *testing.T) {
	slots := &limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 5}
	s := at(base, 0)
	s.Rows = &Holders{}
	say := func(cost uint32, l Report) (bool, error) {
		_, _, stated, err := s.Say(&Part{Cost: cost, Waiting: cost, Report: l}, slots)
		return stated, err
	}
	for n, c := range []struct {
		cost  uint32
		level Report
		noted bool
	}{
		{6, Report{Worker: 1, Since: 3, Number: 3}, false},
		{0, Report{Worker: 1, Since: 3, Number: 3}, true},
		{6, Report{Worker: 2, Since: 2, Number: 3}, true}, // 2 may be under way
	} {
		stated, err := say(c.cost, c.level)
		require.NoError(t, err)
		require.Equal(t, c.noted, stated, n)
	}
	for worker := range uint64(2) {
		_, err := say(0, Report{Worker: worker + 1, Number: 2, Held: 3})
		require.ErrorIs(t, err, ErrStale)
	}
}
