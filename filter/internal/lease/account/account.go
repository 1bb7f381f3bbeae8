// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/sums.go first: it says what an account sums up, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// The verbs of an account. One that changes what the store should know enlists the account for a report:
//
//	                  given  held  charged  enlists it
//	EndReport            +2                 for what has changed since: the store knew of the 2 when it granted them
//	HoldGiven(2)         -2    +2           no: a report says given and held in one number
//	UnholdGiven(2)       +2    -2           no, for the same reason
//	DropGiven(2)         -2                 yes
//	Hold(2)                    +2           yes
//	Unhold(2)                  -2           yes
//	Settle(2, 5)               -2       +5  yes: a request held 2, and its answer has cost 5
//	Lapse(2)                   -2       +2  yes: a request has held 2 for too long
//	SettleLapsed(3)                     +3  yes: the answer to that request has cost 3 more
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
	accountKey // its Key, and what else finds it

	// What the service has said of the key, by the monotonic clock. No request asks until then. EndReport writes them.
	SilentUntilNs   int64 // its store cannot reach the key
	StartingUntilNs int64 // its store is starting: it takes reports, and grants nothing

	sums      quota.Sums // given, held and charged, and what of these the store knows
	reporting            // how the service hears of it
	usedNs    int64      // when a request last wanted units
	lapsed    uint32     // holds that have lapsed, and are to be settled

	Definition *quota.Definition // of the rule that has wanted units last. Open and Inherit write it
	block      *Block            // that the key is blocked; nil if it was not found blocked
	book       *Book
}

// Block is that of a key, as the service has said it.
type Block struct {
	leased.Denial
	Standings []leased.Standing // how the rule's windows stand over all proxies, in the order of records
}

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
	acc.sums.DropGiven(units)
	acc.Enlist()
}

// HoldGiven has a request hold units that the service has granted.
func (acc *Account) HoldGiven(units uint32) { acc.sums.HoldGiven(units) }

// UnholdGiven undoes HoldGiven.
func (acc *Account) UnholdGiven(units uint32) { acc.sums.UnholdGiven(units) }

// Hold has a request hold units that the service has not granted.
func (acc *Account) Hold(units uint32) {
	acc.sums.Hold(units)
	acc.Enlist()
}

// Unhold undoes Hold.
func (acc *Account) Unhold(units uint32) { acc.Settle(units, 0) }

// Settle ends what a request holds, and charges what it has cost.
func (acc *Account) Settle(units, cost uint32) {
	acc.sums.Settle(units, cost)
	acc.Enlist()
}

// Lapse charges what a request has held for too long. SettleLapsed must follow.
func (acc *Account) Lapse(units uint32) {
	acc.lapsed++
	acc.Settle(units, units)
}

// SettleLapsed charges what the request has cost beyond the units that have lapsed.
func (acc *Account) SettleLapsed(beyond uint32) {
	acc.lapsed--
	acc.Settle(0, beyond)
}
