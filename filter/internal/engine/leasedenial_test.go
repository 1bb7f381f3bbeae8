package engine

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A denial by another rule puts the unit back into the lease, checked early or
// found out late.
func TestALateDenialReturnsToTheLease(t *testing.T) {
	const other = `,{"name":"other","key":[{"header":"o"}],"limits":["1/1h"]}`
	for _, late := range []bool{false, true} {
		p := newProxy()
		p.now = aligned
		e := compileJSON(t, p, leased+other)
		hits(e, p, "a", 1+2+4+3)
		lease := e.tries[0].loan.lease
		p.with("u", "a", "o", "x")
		if late {
			p.steal = 1000 // the other rule is never counted; the first writes nothing
		} else {
			require.True(t, e.Decide().Allowed)
		}
		left := lease.left
		v := e.Decide()
		require.False(t, v.Allowed)
		require.Equal(t, late, v.tries[1].reason == ReasonContention)
		require.Equal(t, left, lease.left, "late: %v", late)
		require.Equal(t, 15-left, used(v)[0][0])
		p.steal = 0
		e.StopLeases()
		require.Equal(t, strconv.Itoa(15-int(left)), recorded(t, p, leased, "a"))
		require.Zero(t, e.rules[0].metrics.NotTakenBack)
	}
}

// A hit that is denied after it has taken a lease leaves the lease whole.
func TestALateDenialKeepsTheLeaseItTook(t *testing.T) {
	const other = `,{"name":"other","key":[{"header":"o"}],"limits":["1/1h"],"on_contention":"deny"}`
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased+other)
	p.with("u", "b", "o", "y")
	require.True(t, e.Decide().Allowed)
	hits(e, p, "a", 1)
	p.with("u", "a", "o", "x")
	p.after = func(string) { p.steal = 1000 } // what comes behind the first rule's commit never gets through
	require.False(t, e.Decide().Allowed)
	p.steal, p.after = 0, nil
	require.Equal(t, "3", recorded(t, p, leased, "a"))
	e.StopLeases()
	require.Equal(t, "1", recorded(t, p, leased, "a"))
	require.EqualValues(t, 2, e.rules[0].metrics.LeaseReturned)
}

// Rules of one counter are served from one lease, and neither is denied for
// what the other holds; a lower limit is kept.
func TestRulesOfOneCounterShareALease(t *testing.T) {
	const rules = `{"name":"r","counter":"c","key":[{"header":"u"}],"limits":["1000/1h"],"lease":8},
		{"name":"s","counter":"c","key":[{"header":"u"}],"limits":["500/1h"],"lease":8,"match":{"headers":{"s":"*"}}}`
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, rules)
	hits(e, p, "a", 1+2+4+3) // 10 served, 15 counted
	p.with("u", "a", "s", "1")
	p.calls = nil
	v := e.Decide()
	require.True(t, v.Allowed)
	require.NotContains(t, p.calls, "get")
	require.Equal(t, [][]uint32{{11}, {12}}, used(v))
	require.True(t, e.Decide().Allowed) // and 14
	require.True(t, e.Decide().Allowed) // one is left: the second rule reads
	require.Equal(t, [][]uint32{{15}, {16}}, used(&e.verdict))
	e.StopLeases()
	require.Equal(t, "16", recorded(t, p, rules, "a"))

	e.ResumeLeases()
	operate(t, e, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 492})
	hits(e, p, "a", 3) // counted 492, 1, 2
	hits(e, p, "a", 1)
	p.with("u", "a", "s", "1")
	for e.Decide().Allowed {
	}
	require.Equal(t, "s", e.verdict.DeniedBy().Name)
	e.StopLeases()
	got, err := strconv.Atoi(recorded(t, p, rules, "a"))
	require.NoError(t, err)
	require.LessOrEqual(t, got, 500)
	require.GreaterOrEqual(t, got, 499, "two at a time")
}

// A unit that came out of a lease which a rule behind it has renewed goes back
// to the record, and the other's into the new lease.
func TestALateDenialAfterARenewedLease(t *testing.T) {
	const rules = `{"name":"r","counter":"c","key":[{"header":"u"}],"limits":["1000/1h"],"lease":8},
		{"name":"s","counter":"c","key":[{"header":"u"}],"limits":["1000/1h"],"lease":8,"match":{"headers":{"s":"*"}}},
		{"name":"other","key":[{"header":"o"}],"limits":["9/1h"]}`
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, rules)
	p.with("u", "b", "o", "y", "s", "1")
	require.True(t, e.Decide().Allowed)
	hits(e, p, "a", 1+2+4+7) // 14 served, 15 counted
	lease := e.tries[0].loan.lease
	require.EqualValues(t, 1, lease.left)
	p.with("u", "a", "o", "x", "s", "1")
	p.after = func(string) { p.steal, p.after = maxRetries+1, nil } // the other rule's, behind the commit of the second
	require.False(t, e.Decide().Allowed)
	require.Zero(t, p.steal)
	require.EqualValues(t, 8, lease.left, "a whole new lease")
	require.Equal(t, "22", recorded(t, p, rules, "a"))
	e.StopLeases()
	require.Equal(t, "14", recorded(t, p, rules, "a"))
	require.Zero(t, e.rules[0].metrics.NotTakenBack+e.rules[0].metrics.LeaseLost)
}
