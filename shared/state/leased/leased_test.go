package leased

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func TestLeaseRate(t *testing.T) {
	const period = 100
	var l Lease
	l.Rate.Add(1000, period, 10)
	require.EqualValues(t, 10, l.Rate.Over(1000, period))
	require.EqualValues(t, 10, l.Rate.Over(1099, period))
	require.EqualValues(t, 5, l.Rate.Over(1150, period))
	l.Rate.Add(1150, period, 4)
	require.EqualValues(t, 4+5, l.Rate.Over(1150, period))
	require.EqualValues(t, 0, l.Rate.Over(1300, period))
	l.Rate.Add(5000, period, 1<<32-1)
	l.Rate.Add(5001, period, 1)
	require.Equal(t, uint32(1<<32-1), l.Rate.Over(5001, period), "saturates")

	const most = 5_000_000_000 // half of the longest horizon
	l.Rate = Rate{FromNs: most, Before: 1<<32 - 1}
	require.Equal(t, uint32(1<<32-1), l.Rate.Over(most, most))
	require.InDelta(t, uint32(1<<31), l.Rate.Over(most+most/2, most), 1)
	require.Equal(t, uint32(1<<32-1), l.Rate.Over(0, most), "another worker has added units later")
}

// Units of several grants are spent in the order of their ends, and none after its
// end.
func TestUnitsOfSeveralGrants(t *testing.T) {
	var l Lease
	for i, end := range []int64{30, 10, 20} {
		_, ok := l.Put(0, GrantUnits{GrantID: GrantID{uint32(i), 1, end}, Units: 5})
		require.True(t, ok)
	}
	require.EqualValues(t, 15, l.Left(9))
	require.EqualValues(t, 10, l.Left(10))
	require.Equal(t, Taken{{GrantID: GrantID{2, 1, 20}, Units: 3}}, l.Spend(10, 3))
	require.Equal(t, Taken{
		{GrantID: GrantID{2, 1, 20}, Units: 2}, {GrantID: GrantID{0, 1, 30}, Units: 1},
	}, l.Spend(10, 3), "the others end later")
	require.Equal(t, uint32(4), l.Left(10))
	require.Equal(t, uint32(5), l.Grants[1].Units, "what has ended waits for its worker")

	_, ok := l.Put(10, GrantUnits{GrantID: GrantID{9, 1, 40}, Units: 5})
	require.True(t, ok)
	l.Grants[2].Units, l.Grants[3].Units = 1, 1
	_, ok = l.Put(10, GrantUnits{GrantID: GrantID{8, 1, 40}, Units: 5})
	require.False(t, ok, "no room")
	lost, ok := l.Put(11+StrandedNs, GrantUnits{GrantID: GrantID{8, 1, 40 + StrandedNs}, Units: 5})
	require.True(t, ok)
	require.EqualValues(t, 5, lost, "its worker has not come for it")

	l = Lease{Grants: [MaxGrants]GrantUnits{{GrantID: GrantID{1, 1, 10}, Units: 5}}}
	lost, ok = l.Put(11+StrandedNs, GrantUnits{GrantID: GrantID{2, 1, 40 + StrandedNs}, Units: 5})
	require.True(t, ok)
	require.Zero(t, lost, "there are free places")
}

// The last denial denies its cost and what costs more, and a block each cost.
func TestWhatALeaseDenies(t *testing.T) {
	lasting := func(untilNs int64) Denial { return Denial{UntilNs: untilNs, PassNs: untilNs + 5} }
	forEver := Denial{UntilNs: 20, PassNs: limit.Never}
	for _, tc := range []struct {
		name    string
		do      func(*Lease)
		denies  []uint32
		spares  []uint32
		blocks  bool
		waitsNs int64
	}{
		{"nothing", func(*Lease) {}, nil, []uint32{0, 1}, false, 0},
		{"a cost", func(l *Lease) { l.Deny(3, lasting(20)) }, []uint32{3, 4}, []uint32{0, 2}, false, 15},
		{"a cost of 0", func(l *Lease) { l.Deny(0, lasting(20)) }, []uint32{1}, []uint32{0}, false, 15},
		{"a block", func(l *Lease) { l.Block(forEver) }, []uint32{0, 1}, nil, true, limit.Never},
		{"a cost and then another", func(l *Lease) {
			l.Deny(2, lasting(15))
			l.Deny(5, lasting(30))
		}, []uint32{5}, []uint32{2}, false, 25},
		{"what is over", func(l *Lease) { l.Deny(3, lasting(10)) }, nil, []uint32{3}, false, 5},
		{"what can be spent", func(l *Lease) {
			l.Deny(3, lasting(20))
			l.Allow(3)
		}, nil, []uint32{3}, false, 15},
		{"a block, and then units", func(l *Lease) {
			l.Block(forEver)
			l.Allow(3)
		}, []uint32{0, 1}, nil, true, limit.Never},
		{"more than can be spent", func(l *Lease) {
			l.Deny(3, lasting(20))
			l.Allow(2)
		}, []uint32{3}, []uint32{2}, false, 15},
	} {
		var l Lease
		tc.do(&l)
		for _, cost := range tc.denies {
			require.True(t, l.Denies(cost, 10), "%s: %d", tc.name, cost)
		}
		for _, cost := range tc.spares {
			require.False(t, l.Denies(cost, 10), "%s: %d", tc.name, cost)
		}
		require.Equal(t, tc.blocks, l.Blocks(10), tc.name)
		require.Equal(t, tc.waitsNs, l.WaitNs(10), tc.name)
	}
}

// One ask at a time tells the service what it has not charged, until it has.
func TestOneAskTellsWhatIsUncharged(t *testing.T) {
	var u Uncharged
	none := Telling{}
	require.Equal(t, none, u.Tell(none, 0, 10), "there are none")
	u.Add(5)
	first := u.Tell(none, 0, 20)
	require.EqualValues(t, 5, first.Units)
	require.Equal(t, none, u.Tell(none, 19, 40), "another ask tells them")
	u.EndTelling(none, true)
	require.EqualValues(t, 5, u.Units, "an ask that tells none ends nothing")
	u.Add(2)
	u.EndTelling(first, true)
	require.EqualValues(t, 2, u.Units)

	second := u.Tell(none, 19, 40)
	require.EqualValues(t, 2, second.Units)
	again := u.Tell(second, 21, 42)
	require.EqualValues(t, 2, again.Units, "it is sent again, on the next stream")
	third := u.Tell(none, 42, 50)
	require.EqualValues(t, 2, third.Units, "no answer came in time")
	require.Equal(t, none, u.Tell(again, 43, 60), "another ask has told them since")
	u.EndTelling(again, false)
	require.Equal(t, none, u.Tell(none, 49, 60), "a late answer does not end what another ask tells")
	u.EndTelling(third, false)
	require.EqualValues(t, 2, u.Units, "the service has failed")
	require.EqualValues(t, 2, u.Tell(none, 49, 60).Units, "a later ask tells them")

	require.True(t, u.Remove(1))
	require.False(t, u.Remove(2), "one is left")
	u.EndTelling(Telling{7, 60}, true)
	require.Equal(t, Uncharged{}, u)
	u.Add(1<<32 - 1)
	u.Add(1)
	require.Equal(t, uint32(1<<32-1), u.Units, "saturates")
}
