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

// holdOf is what a request of cost 2 holds.
func holdOf(t *testing.T, rule string, p *purse) (h *Hold, of *Subject) {
	v := begin(t, rule, p)
	v.Decide(1)
	require.True(t, v.Allowed)
	s := v.Subjects[0]
	s.Hold.Units = 2
	holds := v.BeginHolds(nil)
	require.Len(t, holds, 1)
	require.Equal(t, state.HeldTotal{Units: 2, Streams: 1}, s.Rule.Metrics.Holding)
	return &holds[0], s
}

// A hold is renewed until it has lapsed, and each end of it is counted once.
func TestTheLifeOfAHold(t *testing.T) {
	for name, tc := range map[string]struct {
		renewals []Renewal
		atEnd    purse
		lapsed   bool
		counts   metrics.Counts
	}{
		"it is settled": {[]Renewal{NotDue}, purse{}, false, metrics.Counts{}},
		"it is renewed": {
			[]Renewal{Renewed, NotDue, Renewed}, purse{}, false, metrics.Counts{HoldsRenewed: 2},
		},
		"a renewal fails": {
			[]Renewal{Unknown, Renewed}, purse{}, false, metrics.Counts{Errors: 1, HoldsRenewed: 1},
		},
		"a renewal finds it lapsed":    {[]Renewal{Lapsed, Renewed}, purse{lapsed: true}, true, metrics.Counts{HoldsLost: 1}},
		"the end finds it lapsed":      {nil, purse{lapsed: true}, true, metrics.Counts{HoldsLost: 1}},
		"the end fails":                {nil, purse{fails: true}, false, metrics.Counts{Errors: 1}},
		"the account alone is charged": {[]Renewal{Lapsed}, purse{}, true, metrics.Counts{HoldsLost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &purse{left: 9}
			h, s := holdOf(t, settles, p)
			for _, renewal := range tc.renewals {
				p.renewal = renewal
				h.Renew(Clocks{})
			}
			p.lapsed, p.fails = tc.atEnd.lapsed, tc.atEnd.fails
			h.Settle(5, metrics.ByAnswer, 2)
			require.EqualValues(t, 5, p.charged)
			require.Equal(t, tc.lapsed, h.HasLapsed())
			require.Equal(t, state.HeldTotal{}, s.Rule.Metrics.Holding)
			m := &s.Rule.Metrics
			require.EqualValues(t, 1, m.Settled[metrics.ByAnswer])
			require.EqualValues(t, 3, m.ChargedOver, "beyond the 2 that were held")
			got := metrics.Counts{HoldsRenewed: m.HoldsRenewed, HoldsLost: m.HoldsLost, Errors: m.Errors}
			require.Equal(t, tc.counts, got)
		})
	}
}

// max_hold ends a hold at EndNs, and one without it never.
func TestWhenAHoldHasEnded(t *testing.T) {
	require.False(t, (&Hold{}).HasEnded(1<<62))
	h := &Hold{EndNs: 5}
	require.Equal(t, []bool{false, true, true}, []bool{h.HasEnded(4), h.HasEnded(5), h.HasEnded(6)})
}

// Prices count what a lapsed hold has charged, and not less than its answer costs.
func TestWhatAHoldWithAPriceCounts(t *testing.T) {
	const priced = `{"name":"r","limits":["100/1h"],"settle":{"to":"price","prices":[{"model":"*","input":1,"output":1}]}}`
	for _, tc := range []struct {
		at    purse
		cost  uint32
		units uint64
	}{
		{purse{}, 1, 1}, {purse{lapsed: true}, 1, 2}, {purse{lapsed: true}, 3, 3}, {purse{fails: true}, 3, 0},
	} {
		p := &purse{left: 9, lapsed: tc.at.lapsed, fails: tc.at.fails}
		h, s := holdOf(t, priced, p)
		h.Settle(tc.cost, metrics.ByAnswer, 2)
		require.Equal(t, tc.units, s.Rule.Metrics.Priced.Units, "%+v", tc)
	}
}

// Where nobody waits for an answer, a request is charged what it has held, and nothing for a slot.
func TestReleaseChargesTheCost(t *testing.T) {
	for rule, charged := range map[string]uint32{settles: 2, slots: 0} {
		p := &purse{left: 9}
		v := begin(t, rule, p)
		v.Decide(1)
		v.Subjects[0].Hold.Units = 2
		v.Release()
		require.Equal(t, charged, p.charged, rule)
		require.Equal(t, state.HeldTotal{}, v.Subjects[0].Rule.Metrics.Holding)
	}
}
