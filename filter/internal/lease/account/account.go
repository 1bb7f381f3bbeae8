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
//	                  given  held  charged  lists it                          reopens it
//	AddGiven(2)          +2                 no: the store counted the units   no: the store has them as held
//	                                        as held when it granted them
//	HoldGiven(2)         -2    +2           no: a report says given and       no: units were given
//	                                        held in one number
//	UnholdGiven(2)       +2    -2           no, for the same reason           no: units were held
//	DropGiven(2)         -2                 yes                               no: units were given
//	Hold(2)                    +2           yes                               no: Book.Open has just opened it
//	Unhold(2)                  -2           yes                               no: units were held
//	Settle(2, 5)               -2       +5  yes: a request held 2, and its    yes: the request may have held 0 units,
//	                                        answer has cost 5                 or its hold has lapsed
//	Book.WriteReport                        no                                yes: its ask may have waited for long
//
// account.go has what is held, and how the service hears of it. book.go has all accounts of a worker.
package account

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	block      *keptBlock        // that the key is blocked; nil if it was not found blocked

	book      *Book
	name      name
	isListed  bool
	mayBeLost bool // the service, or its store, may have lost what the newest report said: see Book.ReportAll

	IsReportedByAsk bool // a queued ask will report it. It is set for the time of Book.Due
}

// keptBlock is the denial that the worker remembers of a blocked key.
type keptBlock struct {
	denial  decide.Allotment
	untilNs int64
}

// MaxRememberNs is the longest time for which a worker decides about a key by what the service has
// said of it: that its store has failed for this key, or is starting, or that the key is denied or
// blocked. After that it asks again.
const MaxRememberNs = 1_000_000_000

// HoldNs is how long the service holds the units of a worker that reports nothing.
func (acc *Account) HoldNs() int64 {
	return acc.Definition.Windows[len(acc.Definition.Windows)-1].PeriodNs
}

// RememberBlock has the worker remember the denial of a key that is blocked: until untilNs, and no longer than
// MaxRememberNs.
func (acc *Account) RememberBlock(denial decide.Allotment, untilNs int64) {
	denial.Blocked = true // for all later requests, also if the denied ask has begun the block
	acc.block = &keptBlock{denial, min(untilNs, denial.MonotonicNs+MaxRememberNs)}
}

// RecallBlock returns the denial that the worker remembers, as it holds at now, if the key is blocked.
func (acc *Account) RecallBlock(now int64) (denial decide.Allotment, blocked bool) {
	if acc.block == nil || now >= acc.block.untilNs {
		return decide.Allotment{}, false
	}
	denial = acc.block.denial
	if denial.WaitNs != limit.Never {
		denial.WaitNs -= now - denial.MonotonicNs
	}
	return denial, true
}

// AddGiven notes that a request has got units. It does not hold them yet.
func (acc *Account) AddGiven(units uint32) { acc.sums.AddGiven(units) }

// DropGiven notes that a request will not hold what it has got.
func (acc *Account) DropGiven(units uint32) {
	acc.sums.DropGiven(units)
	acc.List()
}

// HoldGiven has a request hold what it has got.
func (acc *Account) HoldGiven(units uint32) { acc.sums.HoldGiven(units) }

// UnholdGiven undoes HoldGiven.
func (acc *Account) UnholdGiven(units uint32) { acc.sums.UnholdGiven(units) }

// Hold has a request hold units that the service has not granted.
func (acc *Account) Hold(units uint32) {
	acc.sums.Hold(units)
	acc.List()
}

// Unhold undoes Hold.
func (acc *Account) Unhold(units uint32) {
	acc.sums.Unhold(units)
	acc.List()
}

// Settle ends what a request holds, and charges what it has cost to the account that the key has by now.
func (acc *Account) Settle(units, cost uint32) {
	current := acc.book.reopen(acc)
	current.sums.Settle(units, cost)
	current.List()
}

// The life of an account's report:
//
//	 WriteReport, by an ask of a request
//	--------------------------------------+
//	      List            WriteReport     v       EndReport
//	-------------> listed -----------> under way -------------> answered
//	                 ^                  |   |
//	                 +--- ReportAgain --+   +- GiveUpReport --> given up
//	                 |                                             |
//	                 +-------------------- Sweep ------------------+
//
//	listed     Book.Due returns the account if it must be reported, and no queued ask will report it. What changes it
//	           lists it.
//	under way  An ask has the report. What changes meanwhile is reported after it.
//	answered   If nothing has changed since, there is nothing to report for an eighth of the hold.
//	given up   The service takes no reports now. Sweep lists the account again within a second.
//
// ReportAgain is for a report that may be lost, because the stream has ended or the service has not answered in time.
// It is also for one that has not left with its ask.

// mustReport reports whether the service is to hear of the account: it has changed, or the newest report may be lost,
// or an eighth of the hold has passed.
func (acc *Account) mustReport(now int64) bool {
	isDue := acc.mayBeLost || now-acc.reportedNs >= acc.HoldNs()/limit.HoldParts
	return acc.sums.Changed() || !acc.sums.Idle() && isDue
}

// underWay are the numbers of an account's reports under way: from firstNumber to sums.NewestReport. They are all in
// one ask, and there are several if rules share a counter: see WriteReport.
type underWay struct {
	firstNumber uint64 // 0 = none is under way
	askedBefore uint32 // by the parts of the ask that report already: the next report counts these units as held
}

// IsUnderWay reports whether a report of the account is under way.
func (acc *Account) IsUnderWay() bool { return acc.underWay.firstNumber != 0 }

// AwaitsReport reports whether the next report of acc's key must wait for the end of one that is under way. If the key
// has no account by now, none is.
func (b *Book) AwaitsReport(acc *Account) bool {
	current := b.current(acc)
	return current != nil && current.IsUnderWay()
}

// hasUnderWay reports whether the report with that number is under way.
func (acc *Account) hasUnderWay(number uint64) bool {
	return acc.IsUnderWay() && acc.underWay.firstNumber <= number && number <= acc.sums.NewestReport()
}

// List puts the account on the list of Book.Due, which has the next message report it if mustReport says so. If a
// report is under way, its end lists the account.
func (acc *Account) List() {
	if !acc.isListed && !acc.IsUnderWay() {
		acc.isListed = true
		acc.book.listed = append(acc.book.listed, acc)
	}
}

// WriteReport writes into a part of an ask what the worker holds of acc's key. It reports the account that the key has
// by now, and returns that: acc, or another one if acc was forgotten meanwhile.
//
// If rules share a counter, an ask for them has a part for each, all with one account. Each part reports as held what
// those before it ask for too, because it may be granted. For example, three rules with one counter, a request that
// costs 2, and a worker that holds 3 of the key:
//
//	part  of rule  its report        under way  EndReport
//	0     first    #7, held 3        #7         may give units; the reports of the parts below count 2 as held
//	1     second   #8, held 3 + 2    #7 and #8  may give units; the report of the part below counts 2 as held
//	2     third    #9, held 3 + 2+2  #7 to #9   may give units, and notes what the store has by now
//
// If part 0 or 1 gets less or more than it asks for, what the store has as held is not what the worker holds and has
// given. So the account is reported once more.
func (b *Book) WriteReport(acc *Account, p *quota.Part, now int64) (of *Account) {
	of = b.reopen(acc)
	u, number := &of.underWay, b.newReportNumber()
	if !of.IsUnderWay() {
		*u = underWay{firstNumber: number}
	}
	p.Report = of.sums.NewReport(of.worker, number, u.askedBefore)
	u.askedBefore = limit.AddSaturating(u.askedBefore, p.Waiting)
	of.reportedNs = now
	of.mayBeLost = false
	return of
}

// EndReport ends a report by what the service has granted for it. mayGive says whether the grant may give units: the
// service has granted them to the worker as it was reported there.
//
//	the report                              mayGive  then
//	is not under way: given up, or lost     no       the account is listed, unless another one is under way. Starting
//	                                                 counts
//	is of an earlier part of the ask        yes      still under way: the last part ends it
//	is the newest one, and not Noted        no       the key is silent, and nothing is under way
//	is the newest one, and Noted            yes      the store knows it, and nothing is under way
//
// A report is not Noted if the store failed, or if the service knows no reports.
func (acc *Account) EndReport(number uint64, g *quota.Grant, now int64) (mayGive bool) {
	if g.Starting {
		acc.StartingUntilNs = now + min(g.WaitNs, MaxRememberNs)
	}
	if !acc.hasUnderWay(number) {
		acc.List() // the answer may have ended a queued ask that was to report it
		return false
	}
	if number != acc.sums.NewestReport() {
		return true
	}
	acc.underWay.firstNumber = 0
	if g.Noted {
		acc.sums.NoteGrant(number, g.Units)
	} else {
		acc.SilentUntilNs = now + MaxRememberNs
	}
	acc.List() // for what has changed since the report
	return g.Noted
}

// GiveUpReport says that the service takes no reports now. If an answer to the report comes all the same, it grants
// no units.
func (acc *Account) GiveUpReport(number uint64) {
	if acc.hasUnderWay(number) {
		acc.underWay.firstNumber = 0
	}
}

// ReportAgain has the account reported with the next message: the report may be lost, or has never left.
func (acc *Account) ReportAgain(number uint64) {
	acc.GiveUpReport(number)
	acc.List()
}
