// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/account.go first: it says what an account is, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// For example, a request takes 2 units of a key, of which the worker holds none, and its answer costs 5 in the end:
//
//	              given  held  charged
//	Give(2)          +2
//	Take(2)          -2    +2
//	Settle(2, 5)           -2       +5
//
// account.go has what is held, report.go how the service hears of it, and book.go all accounts of a worker.
package account

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Account is what this worker holds of one key, and what the service knows of that by its reports.
type Account struct {
	Key        [16]byte
	Definition *quota.Definition

	// What the service has said of the key, by the monotonic clock. No request asks until then.
	SilentNs int64       // its store cannot reach the key
	StartNs  int64       // its store is starting: it takes reports, and grants nothing
	Block    *KeptDenial // the key is blocked

	units    quota.Account
	book     *Book
	name     name
	worker   uint64 // that reports it: an earlier configuration's, if that has ended
	isListed bool
	usedNs   int64 // when a request last wanted units

	// Its reports under way, which are all in one ask: there are several if rules share a counter.
	firstNumber uint64
	lastNumber  uint64 // that of the newest report; 0 = none is under way
	asking      uint32 // for how many units these parts of the ask ask
	reportedNs  int64  // when the last one was sent
}

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
func (acc *Account) Give(units uint32) { acc.units.Given += units }

// Reclaim notes that a request will not take what it has got.
func (acc *Account) Reclaim(units uint32) {
	acc.units.Given -= units
	acc.List()
}

// Take has a request hold what it has got.
func (acc *Account) Take(units uint32) {
	acc.units.Given -= units
	acc.units.Held += units
}

// Untake undoes Take.
func (acc *Account) Untake(units uint32) {
	acc.units.Given += units
	acc.units.Held -= units
}

// Hold has a request hold units that the service has not granted.
func (acc *Account) Hold(units uint32) {
	acc.units.Held += units
	acc.List()
}

// Unhold undoes Hold.
func (acc *Account) Unhold(units uint32) {
	acc.units.Held -= units
	acc.List()
}

// Settle ends what a request holds, and charges what it has cost.
func (acc *Account) Settle(units, cost uint32) {
	acc.units.Settle(units, cost)
	acc.List()
}

// Current returns the account that acc's key has by now. If acc was forgotten and no other was
// opened since, it is acc again.
func (acc *Account) Current() *Account {
	if other := acc.book.byName[acc.name]; other != nil {
		return other
	}
	acc.book.byName[acc.name] = acc
	return acc
}
