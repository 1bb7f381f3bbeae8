// Package account has what one worker holds of the keys of rules that hold units, and what it reports of that to the
// quota service. Read the head of shared/quota/account.go first: it says what an account is, and how the store counts
// by its reports.
//
// Its invariant: each change of an account is reported until the service has answered. A report that has no answer may
// have arrived or not. The next one says all that it said.
//
// The life of an account's report:
//
//	      List              Report                  End
//	-------------> listed -----------> under way ----------> answered
//	                 ^                  |   |
//	                 +---- TryAgain ----+   +--- GiveUp ---> given up
//	                 |                                          |
//	                 +------------------ Renew -----------------+
//
//	listed     Book.Due returns the account if it must be reported. What changes it lists it.
//	under way  An ask has the report. What changes meanwhile is reported after it.
//	answered   If nothing has changed since, there is nothing to report for an eighth of the hold.
//	given up   The service takes no reports now. Renew lists the account again within a second.
//
// TryAgain is for a report that may be lost: the stream has ended, or the service has not answered in time.
//
// For example, a request takes 2 units of a key, of which the worker holds none, and its answer costs 5 in the end:
//
//	              given  held  charged
//	Give(2)          +2
//	Take(2)          -2    +2
//	Settle(2, 5)           -2       +5
package account

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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

// mustReport reports whether the service is to hear of the account: it has changed, or an
// eighth of the hold has passed.
func (acc *Account) mustReport(now int64) bool {
	return acc.units.Changed() || !acc.units.Idle() && now-acc.reportedNs >= acc.HoldNs()/limit.HoldParts
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

// IsUnderWay reports whether a report of the account is under way.
func (acc *Account) IsUnderWay() bool { return acc.lastNumber != 0 }

// List has the account reported with the next message, if it must be. If a report is under way, the next
// one waits for its end, which lists the account again.
func (acc *Account) List() {
	if !acc.isListed && !acc.IsUnderWay() {
		acc.isListed = true
		acc.book.listed = append(acc.book.listed, acc)
	}
}

// Report returns the report for a part of an ask, which asks for so many units. If rules share a counter,
// an ask for them has a part for each, all with one account. Each part reports as held what those
// before it ask for too, because it may be granted. For example, two rules with one counter, a request that
// costs 2, and a worker that holds 3 of the key:
//
//	part  rule    asks for  its report         End
//	0     first   2         #7, held 3         may give the units; the report of part 1 counts them as held
//	1     second  2         #8, held 3 + 2     may give the units, and notes what the store has by now
func (acc *Account) Report(asksFor uint32, now int64) quota.Report {
	number := acc.book.newNumber()
	if !acc.IsUnderWay() {
		acc.firstNumber, acc.asking = number, 0
	}
	report := acc.units.NewReport(acc.worker, number, acc.asking)
	acc.asking = limit.AddSaturating(acc.asking, asksFor)
	acc.lastNumber, acc.reportedNs = number, now
	return report
}

// has reports whether the report with that number is under way.
func (acc *Account) has(number uint64) bool {
	return acc.IsUnderWay() && acc.firstNumber <= number && number <= acc.lastNumber
}

// End ends a report by what the service has granted for it. It returns whether the grant may give units: the service
// has granted them to the worker as it was reported there, so a report that was given up grants nothing.
func (acc *Account) End(number uint64, g *quota.Grant, now int64) (mayGive bool) {
	switch {
	case !acc.has(number):
	case number != acc.lastNumber: // a later part of the same ask has the newest report
		return true
	case !g.Noted: // the service's store failed, or the service knows no reports
		acc.lastNumber = 0
		acc.SilentNs = now + MaxRememberNs
	default:
		acc.lastNumber = 0
		acc.units.NoteGrant(number, g.Units)
		mayGive = true
	}
	acc.List() // for what has changed since the report
	return mayGive
}

// GiveUp says that the service takes no reports now. If an answer to the report comes all the same, it grants no units.
func (acc *Account) GiveUp(number uint64) {
	if acc.has(number) {
		acc.lastNumber = 0
	}
}

// TryAgain has the account reported with the next message: the report may be lost.
func (acc *Account) TryAgain(number uint64) {
	acc.GiveUp(number)
	acc.List()
}
