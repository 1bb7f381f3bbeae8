package decide

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	settles = `{"name":"r","limits":["100/1h"],"settle":{}}`
	slots   = `{"name":"r","limits":["9"],"algorithm":"concurrency"}`
)

// Shadow rules have their turns last, and before them those that block keys. What asks no source has none.
func TestTurns(t *testing.T) {
	const rules = `{"name":"trial","limits":["9/1h"],"mode":"shadow"},` +
		`{"name":"blocks","limits":["9/1h"],"block":"1h"},` +
		`{"name":"plain","limits":["9/1h"]},{"name":"other","limits":["9/1h"]}`
	v := begin(t, rules, &purse{}, &purse{}, &purse{}, &purse{})
	first := v.Subjects[0]
	v.Add(first.Rule, Reading{Cost: 2, LacksKey: true})
	v.Add(first.Rule, Reading{Cost: 2}).Unlimited = true
	v.giveTurns()
	var names []string
	for _, s := range v.inTurn {
		names = append(names, s.Rule.Policy.Name)
	}
	require.Equal(t, []string{"plain", "other", "blocks", "trial"}, names)
	require.Len(t, v.Subjects, 6)

	v.Begin()
	require.Empty(t, v.Subjects)
	require.Same(t, &first.Subject, v.Next(), "its memory serves the next request")
	require.Same(t, &first.Subject, v.Next(), "until it is added")
	require.Same(t, first, v.Add(first.Rule, Reading{}))
	require.NotSame(t, &first.Subject, v.Next())
}

// A subject whose source is not asked counts nothing of the request that had its memory before.
func TestASubjectThatIsNotAskedCountsNothingOfAnEarlierRequest(t *testing.T) {
	v := begin(t, slots, &purse{left: 9})
	s := v.Subjects[0]
	s.Record.Findings = state.Findings{Rebased: true}
	s.Cluster.From = cluster.OwnShare
	v.Begin()
	require.Same(t, s, v.Add(s.Rule, Reading{Cost: 1, LacksKey: true}))
	v.Decide(1)
	require.False(t, v.Allowed)
	require.Zero(t, s.Rule.Metrics.ClockRebased)
	require.Zero(t, s.Rule.Metrics.QuotaUnavailable)
}

// Where nobody waits for an answer, a request is charged what it has held, and nothing for a slot.
func TestReleaseChargesTheCost(t *testing.T) {
	for rule, charged := range map[string]uint32{settles: 2, slots: 0} {
		p := &purse{left: 9}
		decided := func() *Verdict {
			v := begin(t, rule, p)
			v.Decide(1)
			require.True(t, v.Allowed)
			v.Subjects[0].Hold.Units = 2
			return v
		}
		v := decided()
		holds := v.BeginHolds(nil)
		require.Len(t, holds, 1)
		require.Equal(t, state.StreamTotal{Units: 2, Streams: 1}, v.Subjects[0].Rule.Metrics.Holding)
		holds[0].Settle(0, metrics.ByAnswer, 1)
		require.Zero(t, p.charged, "its answer is known, and costs nothing")
		require.Equal(t, state.StreamTotal{}, v.Subjects[0].Rule.Metrics.Holding)

		v = decided()
		v.Release()
		require.Equal(t, charged, p.charged, rule)
		require.Equal(t, state.StreamTotal{}, v.Subjects[0].Rule.Metrics.Holding)
	}
}

// A request of cost 0 takes nothing, so it holds nothing, and its answer is not charged.
func TestACostOf0HoldsNothing(t *testing.T) {
	v := begin(t, settles, &purse{left: 9})
	v.Subjects[0].Cost = 0
	v.Decide(1)
	require.True(t, v.Allowed)
	require.Empty(t, v.BeginHolds(nil))
}

// Retry-After is in whole seconds, rounded up, and at least 1. There is none where no wait would help.
func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		allowed bool
		waitNs  int64
		seconds int64
		ok      bool
	}{
		{true, 0, 0, false},
		{false, limit.Never, 0, false},
		{false, 0, 1, true},
		{false, 1_000_000_000, 1, true},
		{false, 1_000_000_001, 2, true},
	} {
		v := &Verdict{decision: decision{Allowed: tc.allowed, RetryNs: tc.waitNs}}
		seconds, ok := v.RetryAfter()
		require.Equal(t, tc.ok, ok, "%+v", tc)
		require.Equal(t, tc.seconds, seconds, "%+v", tc)
	}
}
