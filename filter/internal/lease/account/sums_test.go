package account

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// What the account of lease.HoldSource's example has after each step, given and held. Account.EndReport lists it, and
// the flush of the same callback finds nothing to report.
func TestTheFirstRequestOfAKeyWithSlots(t *testing.T) {
	b := NewBook()
	d := &quota.Definition{Windows: []limit.Window{{Algorithm: limit.Concurrency, Limit: 3, PeriodNs: 80_000_000_000}}}
	acc := b.Open(d, [16]byte{'a'}, 0)
	var report quota.Part
	for _, step := range []struct {
		name        string
		do          func()
		given, held uint32
		listed      bool
	}{
		{"Claim", acc.Claim, 0, 0, false},
		{"BeginReport", func() {
			report.Waiting = 1
			acc.BeginReport(&report, 0)
			acc.Unclaim()
		}, 0, 0, false},
		{"EndReport", func() {
			require.True(t, acc.EndReport(1, &quota.Grant{Noted: true, Units: 1}, 0))
		}, 1, 0, true},
		{"HoldGiven", func() { acc.HoldGiven(1) }, 0, 1, true},
		{"Client.Flush", func() { require.Empty(t, b.Due(nil, 1, 0), "the store has 1 as held") }, 0, 1, false},
		{"Settle", func() { acc.Settle(1, 0) }, 0, 0, true},
		{"BeginReport", func() {
			require.Equal(t, []*Account{acc}, b.Due(nil, 1, 0))
			report.Waiting = 0
			acc.Claim()
			acc.BeginReport(&report, 0)
			acc.Unclaim()
		}, 0, 0, false},
	} {
		step.do()
		require.Equal(t, []uint32{step.given, step.held}, []uint32{acc.sums.Given(), acc.sums.Held()}, step.name)
		require.Equal(t, step.listed, acc.isListed, step.name)
		require.Zero(t, report.Held)
	}
}

// A sum that would fall below zero would be reported as four billion units.
func TestNoVerbTakesMoreThanThereIs(t *testing.T) {
	d := &quota.Definition{Windows: []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: 80_000_000_000}}}
	for name, do := range map[string]func(*Account, uint32){
		"DropGiven": (*Account).DropGiven,
		"Unhold":    (*Account).Unhold,
		"Settle":    func(acc *Account, units uint32) { acc.Settle(units, 0) },
	} {
		acc := NewBook().Open(d, [16]byte{'a'}, 0)
		do(acc, 2)
		require.Zero(t, acc.sums.Given(), name)
		require.Zero(t, acc.sums.Held(), name)
		require.True(t, acc.sums.Idle(), name)
	}
}
