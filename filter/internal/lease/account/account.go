// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/sums.go first: it says what an account sums up, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// The verbs of an account. One that changes what the store should know lists the account for a report. An account is
// forgotten once it is idle, and two verbs reopen it:
//
//	              given  held  charged  lists it                          reopens it
//	Give(2)          +2                 no: the store counted the units   no: the store has them as held
//	                                    as held when it granted them
//	Take(2)          -2    +2           no: a report says given and       no: units were given
//	                                    held in one number
//	Untake(2)        +2    -2           no, for the same reason           no: units were held
//	Reclaim(2)       -2                 yes                               no: units were given
//	Hold(2)                +2           yes                               no: Book.Open has just opened it
//	Unhold(2)              -2           yes                               no: units were held
//	Settle(2, 5)           -2       +5  yes: a request held 2, and its    yes: the request may have held 0 units,
//	                                    answer has cost 5                 or its hold has lapsed
//	WriteReport                         no                                yes: its ask may have waited for long
//
// account.go has what is held, report.go how the service hears of it, and book.go all accounts of a worker.
package account

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Account is what this worker holds of one key. Its sums count; it also knows when they must be reported. A worker may
// have maxAccounts of them, so the fields are in an order that pads little.
type Account struct {
	Key [16]byte

	// What the service has said of the key, by the monotonic clock. No request asks until then. EndReport writes them.
	SilentUntilNs   int64 // its store cannot reach the key
	StartingUntilNs int64 // its store is starting: it takes reports, and grants nothing

	sums       quota.Sums // given, held and charged, and what of these the store knows
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
	current := acc.reopen()
	current.sums.Settle(units, cost)
	current.List()
}

// current returns the account that acc's key has by now: acc, or one that was opened after acc was forgotten, or nil.
func (acc *Account) current() *Account { return acc.book.byName[acc.name] }

// reopen returns the account that acc's key has by now. If Book.Renew has forgotten acc and there is no other, it puts
// acc back.
func (acc *Account) reopen() *Account {
	if other := acc.current(); other != nil {
		return other
	}
	acc.book.byName[acc.name] = acc
	return acc
}
