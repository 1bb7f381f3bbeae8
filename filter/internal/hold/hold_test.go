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
	atOnce  bool // a hold was charged when it was taken
	fails   bool // a call into the proxy does
	renewal Renewal
	charged uint32
}

func (p *purse) Settle(_ *Hold, cost uint32, _ int64) Settlement {
	switch {
	case p.fails:
		return Failed
	case p.lapsed:
		return HadLapsed
	case p.atOnce:
		return ChargedAtOnce
	}
	p.charged += cost
	return CostCharged
}

func (p *purse) Renew(*Hold, Clocks) Renewal { return p.renewal }

// account is one whose service holds units for 100 ns.
type account struct{ held, charged, lapsed uint32 }

func (a *account) Settle(units, cost uint32) {
	a.held -= units
	a.charged += cost
}

func (a *account) Lapse(units uint32) {
	a.lapsed += units
	a.Settle(units, units)
}

func (a *account) SettleLapsed(beyond uint32) {
	a.lapsed = 0
	a.Settle(0, beyond)
}

func (*account) HoldNs() int64 { return 100 }

// begin begins a hold of 2 units.
func begin(t *testing.T, rule string, p *purse) *Hold {
	r := &hosttest.Policy(t, rule).Rules[0]
	m := metrics.Of(r)
	h := &Hold{Hold: state.Hold{Units: 2}, Rule: &Rule{Policy: r, Metrics: &m, Source: p}}
	h.Begin()
	require.Equal(t, state.StreamTotal{Units: 2, Streams: 1}, h.Rule.Metrics.Holding)
	return h
}

// A table that holds nothing charges units at once. So nothing can lapse there, although Settle finds them charged.
func TestAHoldThatIsChargedAtOnceIsNotLost(t *testing.T) {
	h := begin(t, settles, &purse{atOnce: true})
	h.Settle(5, metrics.ByAnswer, 2)
	require.Zero(t, h.Rule.Metrics.HoldsLost)
}

// A hold is renewed until it has lapsed, and each end of it is counted once.
func TestTheLifeOfAHold(t *testing.T) {
	for name, tc := range map[string]struct {
		renewals  []Renewal
		atEnd     purse
		hasLapsed bool // by a renewal
		charged   uint32
		counts    metrics.Counts
	}{
		"it is settled": {[]Renewal{NotDue}, purse{}, false, 5, metrics.Counts{ChargedOverHold: 3}},
		"it is renewed": {
			[]Renewal{Renewed, NotDue, Renewed}, purse{}, false, 5,
			metrics.Counts{HoldsRenewed: 2, ChargedOverHold: 3},
		},
		"a renewal fails": {
			[]Renewal{Unknown, Renewed}, purse{}, false, 5,
			metrics.Counts{Errors: 1, HoldsRenewed: 1, ChargedOverHold: 3},
		},
		"a renewal finds it lapsed": {
			[]Renewal{Lapsed, Renewed}, purse{lapsed: true}, true, 0,
			metrics.Counts{HoldsLost: 1, ChargedOverHold: 3},
		},
		"a renewal finds it gone": {
			[]Renewal{Gone, Renewed}, purse{}, false, 5, metrics.Counts{HoldsLost: 1, ChargedOverHold: 3},
		},
		"the end finds it lapsed": {
			nil, purse{lapsed: true}, false, 0, metrics.Counts{HoldsLost: 1, ChargedOverHold: 3},
		},
		"the end fails": {nil, purse{fails: true}, false, 0, metrics.Counts{Errors: 1}},
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
			require.Equal(t, tc.charged, p.charged)
			require.Equal(t, tc.hasLapsed, h.HasLapsed(), "the end changes nothing")
			require.Equal(t, state.StreamTotal{}, h.Rule.Metrics.Holding)
			require.Equal(t, tc.counts, countsOf(t, h))
		})
	}
}

// countsOf are the metrics of a hold that its answer has settled.
func countsOf(t *testing.T, h *Hold) metrics.Counts {
	counts := h.Rule.Metrics.Counts
	require.EqualValues(t, 1, counts.SettledBy[metrics.ByAnswer])
	counts.SettledBy = metrics.Counts{}.SettledBy
	return counts
}

// An account charges the cost when the hold is settled. A hold after max_hold, it has charged the units, and charges
// the rest. What the table does of it loses no hold, unless its end finds that it had lapsed there.
func TestAHoldInAnAccount(t *testing.T) {
	const ends = 50
	lasts := metrics.Counts{ChargedOverHold: 3}
	lost := metrics.Counts{ChargedOverHold: 3, HoldsLost: 1}
	for name, tc := range map[string]struct {
		at      int64
		inTable purse
		charged uint32 // by the renewals
		counts  metrics.Counts
	}{
		"it runs":                            {ends - 1, purse{}, 0, lasts},
		"max_hold is over":                   {ends + 99, purse{}, 0, lasts},
		"it has lapsed":                      {ends + 100, purse{}, 2, lost},
		"it has lapsed in both":              {ends + 100, purse{renewal: Lapsed, lapsed: true}, 2, lost},
		"it is gone from the table":          {ends - 1, purse{renewal: Gone}, 0, lasts},
		"it has lapsed in the table":         {ends - 1, purse{renewal: Lapsed, lapsed: true}, 0, lost},
		"it is charged, and the table fails": {ends - 1, purse{fails: true}, 0, metrics.Counts{Errors: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			acc := &account{held: 2}
			h := begin(t, settles, &tc.inTable)
			h.Account, h.EndNs = acc, ends
			for range 2 {
				h.Renew(Clocks{MonotonicNs: tc.at})
				require.Equal(t, account{2 - tc.charged, tc.charged, tc.charged}, *acc)
			}
			h.Settle(5, metrics.ByAnswer, 2)
			require.Equal(t, account{charged: 5}, *acc)
			require.Equal(t, tc.counts, countsOf(t, h))
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
		{purse{atOnce: true}, 1, 2}, {purse{atOnce: true}, 3, 3}, {purse{renewal: Gone}, 1, 1}, {purse{renewal: Gone}, 3, 3},
	} {
		h := begin(t, priced, &tc.at)
		h.Renew(Clocks{})
		h.Settle(tc.cost, metrics.ByAnswer, 2)
		require.Equal(t, tc.units, h.Rule.Metrics.Priced.ChargedUnits, "%+v", tc)
	}
}
