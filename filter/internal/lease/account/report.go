package account

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// The life of an account's report:
//
//	           list              Due, Claim                Write
//	unlisted --------> listed ---------------> unlisted ----------> under way
//	                     ^                        ^                  |   |
//	                     |                        +----- GiveUp -----+   |
//	                     +------ End, Repeat, ReportAll -----------------+
//
//	unlisted   A queued ask will report the account, nothing must be reported, or the service takes no reports now.
//	           Sweep lists it within a second if it must be reported.
//	listed     Something may have to be reported. Book.Due returns the account if mustReport says so, unless a queued
//	           ask has claimed it.
//	under way  An ask has the report. What changes meanwhile is reported after it. If nothing has, there is nothing to
//	           report for an eighth of the hold.
//
// Repeat is for one report that may be lost, because the service has not answered in time, or that has not left with
// its ask. ReportAll is for all of them: the stream has ended.
type reportState uint8

const (
	unlisted reportState = iota
	listed
	underWay
)

// reporting is how far the report of an account is. Each new state writes it whole.
type reporting struct {
	// Of reports under way. They are all in one ask, and there are several if rules share a counter: see Reporter.
	firstNumber uint64 // their numbers are from this to sums.NewestReport
	askedBefore uint32 // by the parts of the ask that report already: the next report counts these units as held

	state reportState
}

// isUnderWay reports whether a report of the account is under way.
func (acc *Account) isUnderWay() bool { return acc.reporting.state == underWay }

// list puts the account on the list of Book.Due, unless a report is under way: its end lists the account.
func (acc *Account) list() {
	if acc.reporting.state == unlisted {
		acc.reporting = reporting{state: listed}
		acc.book.listed = append(acc.book.listed, acc)
	}
}

// reportAnew has the account reported on another stream, if the worker holds something: no report is under way any
// more, and the service, or its store, may have lost what it has heard.
func (acc *Account) reportAnew() {
	if acc.isUnderWay() {
		acc.reporting = reporting{}
	}
	if !acc.sums.Idle() {
		acc.repeatNs = 0
		acc.list()
	}
}

// mustReport reports whether the service is to hear of the account: it has changed, or what is held must be repeated.
func (acc *Account) mustReport(now int64) bool {
	return acc.sums.Changed() || !acc.sums.Idle() && now >= acc.repeatNs
}

// Reporter reports an account in one part of an ask: it makes the report, and ends it. That of a part without an
// account is the zero value. It reports nothing, and none of its methods changes anything.
//
// If rules share a counter, an ask for them has a part for each, all with one account. Each part reports as held what
// those before it ask for too, because it may be granted. For example, three rules with one counter, a request that
// costs 2, and a worker that holds 3 of the key:
//
//	part  of rule  its report        under way  End
//	0     first    #7, held 3        #7         may give units; the reports of the parts below count 2 as held
//	1     second   #8, held 3 + 2    #7 and #8  may give units; the report of the part below counts 2 as held
//	2     third    #9, held 3 + 2+2  #7 to #9   may give units, and notes what the store has by now
//
// If part 0 or 1 gets less or more than it asks for, what the store has as held is not what the worker holds and has
// given. So the account is reported once more.
type Reporter struct {
	made   *Account // the key's when the part was made, nil if it reports nothing; the key may have another by now
	number uint64   // of the report that it has written last, 0 before Write
}

// Reporter returns a reporter of the account.
func (acc *Account) Reporter() Reporter { return Reporter{made: acc} }

// Account is the account that its key has by now, nil if it reports nothing.
func (r *Reporter) Account() *Account { return r.made.current() }

// Claim takes the account off the list, because a queued ask will report it. Sweep or the end of the ask lists it
// again.
func (r *Reporter) Claim() {
	if acc := r.Account(); acc != nil && acc.reporting.state == listed {
		acc.reporting = reporting{}
	}
}

// MustWait reports whether its ask must wait for the end of a report of the same key.
func (r *Reporter) MustWait() bool {
	acc := r.Account()
	return acc != nil && acc.isUnderWay()
}

// Write writes into the part what the worker holds of the key: the report is under way then.
func (r *Reporter) Write(p *quota.Part, now int64) {
	acc := r.made.revive()
	if acc == nil {
		return
	}
	r.number = acc.book.newReportNumber()
	if !acc.isUnderWay() {
		acc.reporting = reporting{state: underWay, firstNumber: r.number}
	}
	p.Report = acc.sums.NewReport(acc.worker, r.number, acc.reporting.askedBefore)
	acc.reporting.askedBefore = limit.AddSaturating(acc.reporting.askedBefore, p.Waiting)
	acc.repeatNs = now + acc.HoldNs()/limit.HoldParts
}

// hasSent reports whether the account's reports that are under way are of its ask. Those of a later ask have greater
// numbers.
func (r *Reporter) hasSent(acc *Account) bool {
	return acc.isUnderWay() && acc.reporting.firstNumber <= r.number
}

// End ends the report by what the service has granted for it. mayGive says whether the grant gives units: its store did
// not fail, and the service has granted them to the worker as it was reported there. The account has them as given
// then: what no request gets of them is to be dropped.
//
//	the report                              mayGive  then
//	there is none                           yes
//	is not under way: given up, or lost     no       the account is listed, unless another one is under way
//	is of an earlier part of the ask        yes      still under way: the last part ends it
//	is the newest one, and not Noted        no       the key is silent, and nothing is under way
//	is the newest one, and Noted            yes      the store knows it, and nothing is under way
//
// A report is not Noted if the store failed, or if the service knows no reports. Starting counts, whatever has become
// of the report.
func (r *Reporter) End(g *quota.Grant, now int64) (mayGive bool) {
	acc := r.made.revive()
	if acc == nil {
		return !g.Failed
	}
	if g.Starting {
		acc.StartingUntilNs = now + min(g.WaitNs, MaxRememberNs)
	}
	if !r.hasSent(acc) {
		acc.list() // the answer may have ended a queued ask that was to report it
		return false
	}
	mayGive = !g.Failed
	if r.number == acc.sums.NewestReport() {
		mayGive = mayGive && g.Noted
		acc.endReports(g, now)
	}
	if mayGive {
		acc.sums.AddGiven(g.Units)
	}
	return mayGive
}

// endReports ends all reports of an ask, by what the service has granted for the newest one.
func (acc *Account) endReports(g *quota.Grant, now int64) {
	if g.Noted {
		acc.sums.NoteGrant(acc.sums.NewestReport(), g.Units)
	} else {
		acc.SilentUntilNs = now + MaxRememberNs
	}
	acc.reporting = reporting{}
	acc.list() // for what has changed since the report
}

// GiveUp says that the service takes no reports now. If an answer to the report comes all the same, it grants no units.
func (r *Reporter) GiveUp() {
	if acc := r.made.revive(); acc != nil && r.hasSent(acc) {
		acc.reporting = reporting{}
	}
}

// Repeat has the account reported with the next message: the report may be lost, or has never left.
func (r *Reporter) Repeat() {
	if acc := r.made.revive(); acc != nil {
		r.GiveUp()
		acc.list()
	}
}
