// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/sums.go first: it says what an account sums up, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// The verbs of an account. One that changes what the store should know lists the account for a report:
//
//	              given  held  charged  listed
//	Give(2)          +2                 no: the store counted the units as held when it granted them
//	Take(2)          -2    +2           no: a report says given and held in one number
//	Untake(2)        +2    -2           no, for the same reason
//	Reclaim(2)       -2                 yes
//	Hold(2)                +2           yes
//	Unhold(2)              -2           yes
//	Settle(2, 5)           -2       +5  yes: a request held 2, and its answer has cost 5
//
// account.go has what is held, report.go how the service hears of it, and book.go all accounts of a worker.
package account

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Account is what this worker holds of one key. Its sums, a quota.Sums, count; this one also knows when it must be
// reported. A worker may have maxAccounts of them, so the fields are in an order that pads little.
type Account struct {
	Key [16]byte

	// What the service has said of the key, by the monotonic clock. No request asks until then. EndReport writes them.
	SilentUntilNs   int64 // its store cannot reach the key
	StartingUntilNs int64 // its store is starting: it takes reports, and grants nothing

	sums       quota.Sums // given, held, charged; stored and known by the store; in doubt without an answer
	underWay   underWay
	worker     uint64 // that reports it: an earlier configuration's, if that has ended
	usedNs     int64  // when a request last wanted units
	reportedNs int64  // when the newest report was sent

	Definition *quota.Definition // of the rule that has wanted units last. Open and Inherit write it
	Block      *KeptDenial       // the key is blocked. Package lease alone writes and reads it

	book      *Book
	name      name
	isListed  bool
	mayBeLost bool // the service, or its store, may have lost what the newest report said: see Book.ReportAll
}

// Of package lease, which decides by them:

// KeptDenial is a denial that the worker remembers of a blocked key.
type KeptDenial struct {
	decide.Grant
	UntilNs int64 // no longer than the key is blocked, and MaxRememberNs
}

// MaxRememberNs is the longest time for which a worker decides about a key by what the service has
// said of it: that its store has failed for this key, or is starting, or that the key is denied or
// blocked. After that it asks again.
const MaxRememberNs = 1_000_000_000

// HoldNs is how long the service holds the units of a worker that reports nothing.
func (acc *Account) HoldNs() int64 {
	return acc.Definition.Windows[len(acc.Definition.Windows)-1].PeriodNs
}

// Give notes that a request has got units. It has not taken them yet.
func (acc *Account) Give(units uint32) { acc.sums.Given += units }

// Reclaim notes that a request will not take what it has got.
func (acc *Account) Reclaim(units uint32) {
	acc.sums.Given -= units
	acc.List()
}

// Take has a request hold what it has got.
func (acc *Account) Take(units uint32) {
	acc.sums.Given -= units
	acc.sums.Held += units
}

// Untake undoes Take.
func (acc *Account) Untake(units uint32) {
	acc.sums.Given += units
	acc.sums.Held -= units
}

// Hold has a request hold units that the service has not granted.
func (acc *Account) Hold(units uint32) {
	acc.sums.Held += units
	acc.List()
}

// Unhold undoes Hold.
func (acc *Account) Unhold(units uint32) {
	acc.sums.Held -= units
	acc.List()
}

// Settle ends what a request holds, and charges what it has cost to the account that the key has by now.
func (acc *Account) Settle(units, cost uint32) {
	current := acc.Reopen()
	current.sums.Settle(units, cost)
	current.List()
}

// current returns the account that acc's key has by now: acc, or one that was opened after acc was forgotten, or nil.
func (acc *Account) current() *Account { return acc.book.byName[acc.name] }

// Reopen returns the account that acc's key has by now. If there is none, it puts acc back. Book.Renew forgets idle
// accounts, and two may point to one later:
//
//	a hold of no units, or of units that have lapsed  Settle reopens its account
//	an ask that has waited for long                   lease.Part.WriteReport does
//
// Take, Untake, Unhold and Reclaim need not: an account is not idle as long as units are given or held.
func (acc *Account) Reopen() *Account {
	if other := acc.current(); other != nil {
		return other
	}
	acc.book.byName[acc.name] = acc
	return acc
}
