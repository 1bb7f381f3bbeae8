package account

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// The life of an account's report:
//
//	 WriteReport, by an ask of a request
//	--------------------------------------+
//	      List            WriteReport     v       EndReport
//	-------------> listed -----------> under way -------------> answered
//	                 ^                  |   |
//	                 +--- ReportAgain --+   +- GiveUpReport --> given up
//	                 |                                             |
//	                 +-------------------- Renew ------------------+
//
//	listed     Book.Due returns the account if it must be reported. What changes it lists it.
//	under way  An ask has the report. What changes meanwhile is reported after it.
//	answered   If nothing has changed since, there is nothing to report for an eighth of the hold.
//	given up   The service takes no reports now. Renew lists the account again within a second.
//
// ReportAgain is for a report that may be lost: the stream has ended, or the service has not answered in time.

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

// List has the account reported with the next message, if it must be. If a report is under way, the next
// one waits for its end, which lists the account again.
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
//	is not under way: given up, or lost     no       as before, but Starting counts: another one may be under way
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

// ReportAgain has the account reported with the next message: the report may be lost.
func (acc *Account) ReportAgain(number uint64) {
	acc.GiveUpReport(number)
	acc.List()
}
