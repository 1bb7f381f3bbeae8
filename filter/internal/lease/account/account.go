// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/sums.go first: it says what an account sums up, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// The verbs of an account. One that changes what the store should know lists the account for a report:
//
//	                  given  held  charged  lists it
//	Reporter.End         +2                 no: the store counted the units as held when it granted them
//	HoldGiven(2)         -2    +2           no: a report says given and held in one number
//	UnholdGiven(2)       +2    -2           no, for the same reason
//	DropGiven(2)         -2                 yes
//	Hold(2)                    +2           yes
//	Unhold(2)                  -2           yes
//	Settle(2, 5)               -2       +5  yes: a request held 2, and its answer has cost 5
//
// Sweep forgets an account of which nothing is given or held. A request that held 0 units, or whose hold has lapsed,
// may be settled later, and an ask may wait for long before it reports. So each of these verbs begins with revive, and
// so does all that ends or makes a report.
//
// account.go has what is held, report.go how the service hears of it, and book.go all accounts of a worker.
package account

import (
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Account is what this worker holds of one key. Its sums count; it also knows when they must be reported. A worker may
// have maxAccounts of them, so the fields are in an order that pads little.
type Account struct {
	Key [16]byte

	// What the service has said of the key, by the monotonic clock. No request asks until then. Reporter.End writes them.
	SilentUntilNs   int64 // its store cannot reach the key
	StartingUntilNs int64 // its store is starting: it takes reports, and grants nothing

	sums      quota.Sums // given, held and charged, and what of these the store knows
	reporting reporting
	worker    uint64 // that reports it: an earlier configuration's, if that has ended
	usedNs    int64  // when a request last wanted units
	repeatNs  int64  // when the newest report must be repeated, if the worker holds something and nothing changes

	Definition *quota.Definition // of the rule that has wanted units last. Open and Inherit write it
	block      *Block            // that the key is blocked; nil if it was not found blocked

	book        *Book
	name        name
	isForgotten bool // by Sweep: the key has another account by now, or none
}

// Block is that of a key, as the service has said it.
type Block struct {
	leased.Denial
	Standings []leased.Standing // how the rule's windows stand over all proxies, in the order of records
}

// MaxRememberNs is the longest time for which a worker decides about a key by what the service has
// said of it: that its store has failed for this key, or is starting, or that the key is denied or
// blocked. After that it asks again.
const MaxRememberNs = 1_000_000_000

// HoldNs is how long the service holds the units of a worker that reports nothing.
func (acc *Account) HoldNs() int64 {
	return acc.Definition.Windows[len(acc.Definition.Windows)-1].PeriodNs
}

// RememberBlock has the worker remember that the key is blocked.
func (acc *Account) RememberBlock(b Block) { acc.block = &b }

// RecallBlock returns the block that the worker remembers at now.
func (acc *Account) RecallBlock(now int64) (b *Block, blocked bool) {
	if acc.block == nil || now >= acc.block.UntilNs {
		return nil, false
	}
	return acc.block, true
}

// DropGiven notes that no request will hold units that the service has granted.
func (acc *Account) DropGiven(units uint32) {
	acc = acc.revive()
	acc.sums.DropGiven(units)
	acc.list()
}

// HoldGiven has a request hold units that the service has granted.
func (acc *Account) HoldGiven(units uint32) { acc.revive().sums.HoldGiven(units) }

// UnholdGiven undoes HoldGiven.
func (acc *Account) UnholdGiven(units uint32) { acc.revive().sums.UnholdGiven(units) }

// Hold has a request hold units that the service has not granted.
func (acc *Account) Hold(units uint32) {
	acc = acc.revive()
	acc.sums.Hold(units)
	acc.list()
}

// Unhold undoes Hold.
func (acc *Account) Unhold(units uint32) { acc.Settle(units, 0) }

// Settle ends what a request holds, and charges what it has cost.
func (acc *Account) Settle(units, cost uint32) {
	acc = acc.revive()
	acc.sums.Settle(units, cost)
	acc.list()
}
