package hold

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const settles = `{"name":"r","limits":["100/1h"],"settle":{}}`

// purse is a source that charges what it is told.
type purse struct {
	lapsed  bool // a hold has, and was charged
	fails   bool // a call into the proxy does
	renewal Renewal
	charged uint32

	hasLapsed bool // the hold that is settled, by what Renew has found
}

func (p *purse) Settle(h *Hold, cost uint32, _ int64) (lapsed, ok bool) {
	p.charged += cost
	p.hasLapsed = h.HasLapsed()
	return p.lapsed, !p.fails
}

func (p *purse) Renew(*Hold, Clocks) Renewal { return p.renewal }

// begin begins a hold of 2 units.
func begin(t *testing.T, rule string, p *purse) *Hold {
	r := &hosttest.Policy(t, rule).Rules[0]
	m := metrics.Of(r)
	h := &Hold{Hold: state.Hold{Units: 2}, Rule: &Rule{Policy: r, Metrics: &m, Source: p}}
	h.Begin()
	require.Equal(t, state.HeldTotal{Units: 2, Streams: 1}, h.Rule.Metrics.Holding)
	return h
}

// A hold is renewed until it has lapsed, and each end of it is counted once.
func TestTheLifeOfAHold(t *testing.T) {
	for name, tc := range map[string]struct {
		renewals  []Renewal
		atEnd     purse
		hasLapsed bool // by a renewal
		counts    metrics.Counts
	}{
		"it is settled": {[]Renewal{NotDue}, purse{}, false, metrics.Counts{}},
		"it is renewed": {
			[]Renewal{Renewed, NotDue, Renewed}, purse{}, false, metrics.Counts{HoldsRenewed: 2},
		},
		"a renewal fails": {
			[]Renewal{Unknown, Renewed}, purse{}, false, metrics.Counts{Errors: 1, HoldsRenewed: 1},
		},
		"a renewal finds it lapsed": {
			[]Renewal{Lapsed, Renewed}, purse{lapsed: true}, true, metrics.Counts{HoldsLost: 1},
		},
		"a renewal finds it gone":      {[]Renewal{Gone, Renewed}, purse{}, false, metrics.Counts{HoldsLost: 1}},
		"the end finds it lapsed":      {nil, purse{lapsed: true}, false, metrics.Counts{HoldsLost: 1}},
		"the end fails":                {nil, purse{fails: true}, false, metrics.Counts{Errors: 1}},
		"the account alone is charged": {[]Renewal{Lapsed}, purse{}, true, metrics.Counts{HoldsLost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &purse{}
			h := begin(t, settles, p)
			for _, renewal := range tc.renewals {
				p.renewal = renewal
				h.Renew(Clocks{})
			}
			p.lapsed, p.fails = tc.atEnd.lapsed, tc.atEnd.fails
			h.Settle(5, metrics.ByAnswer, 2)
			require.EqualValues(t, 5, p.charged)
			require.Equal(t, tc.hasLapsed, p.hasLapsed)
			require.Equal(t, tc.hasLapsed, h.HasLapsed(), "the end changes nothing")
			m := h.Rule.Metrics
			require.Equal(t, state.HeldTotal{}, m.Holding)
			require.EqualValues(t, 1, m.SettledBy[metrics.ByAnswer])
			if !tc.atEnd.fails {
				require.EqualValues(t, 3, m.ChargedOverHold, "beyond the 2 that were held")
			} else {
				require.Zero(t, m.ChargedOverHold, "nothing is charged")
			}
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
	const priced = `{"name":"r","limits":["100/1h"],` +
		`"settle":{"to":"price","prices":[{"model":"*","input":1,"output":1}]}}`
	for _, tc := range []struct {
		at    purse
		cost  uint32
		units uint64
	}{
		{purse{}, 1, 1}, {purse{lapsed: true}, 1, 2}, {purse{lapsed: true}, 3, 3}, {purse{fails: true}, 3, 0},
		{purse{renewal: Lapsed}, 1, 2}, {purse{renewal: Lapsed}, 3, 3}, {purse{renewal: Lapsed, fails: true}, 3, 0},
		{purse{renewal: Gone}, 1, 1}, {purse{renewal: Gone}, 3, 3},
	} {
		h := begin(t, priced, &tc.at)
		h.Renew(Clocks{})
		h.Settle(tc.cost, metrics.ByAnswer, 2)
		require.Equal(t, tc.units, h.Rule.Metrics.Priced.ChargedUnits, "%+v", tc)
	}
}
