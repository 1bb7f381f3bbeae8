package account

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// reporting is how far the reports of an account are:
//
//	listed     It may have to be reported. Book.Due returns it if it has to.
//	under way  An ask was sent with the report. What changes meanwhile is reported after it.
//
// Who changes that:
//
//	by           when                                          the account then
//	Enlist       the store should know what has changed        is listed, unless it is under way
//	Due          a message can be sent                         is not listed
//	BeginReport  an ask is sent: one that only reports it, or  is under way
//	             one by which requests ask for its units
//	EndReport    the report has an answer                      is not under way, and listed as by Enlist
//	GiveUp       it has none, or none in time                  is not under way. Sweep lists it within a second, if
//	                                                           nobody does sooner
type reporting struct {
	underWay uint64 // the number of the report that is under way, 0 if none is
	repeatNs int64  // when what is held must be reported, if nothing changes
	isListed bool   // for Book.Due
}

// Enlist puts the account on the list of Book.Due, where it is once.
func (acc *Account) Enlist() {
	if !acc.isListed && !acc.IsUnderWay() {
		acc.isListed = true
		acc.book.listed = append(acc.book.listed, acc)
	}
}

// mustReport reports whether the account must be reported. If its key is silent, Sweep lists it later.
func (acc *Account) mustReport(now int64) bool {
	if acc.IsUnderWay() || acc.SilentUntilNs > now || acc.sums.Idle() {
		return false
	}
	return acc.sums.Changed() || now >= acc.repeatNs // what is held is repeated if nothing changes
}

// IsUnderWay reports whether a report of the account is under way: another ask for its units must wait.
func (acc *Account) IsUnderWay() bool { return acc.underWay > 0 }

// BeginReport returns a new report of what the worker holds, for an ask. It is under way then.
func (acc *Account) BeginReport(now int64) quota.Report {
	acc.underWay = acc.book.newReportNumber()
	acc.repeatNs = now + acc.HoldNs()/limit.HoldParts
	return acc.sums.NewReport(acc.worker, acc.underWay)
}

// EndReport ends the report of that number by what the service has granted for it:
//
//	the report                           then
//	is not under way: given up, or lost  nothing changes
//	is under way, and not Noted          the key is silent, and nothing is under way
//	is under way, and Noted              the store knows it, and nothing is under way
//
// mayGive says whether the grant gives units: the report was under way, and the store has noted it, and has not failed.
// The account has them as given then: what no request gets of them is to be dropped.
//
// A report is not Noted if the store failed, unless that is Starting, or if the service knows no reports. Starting
// counts, whatever has become of the report.
func (acc *Account) EndReport(number uint64, g *quota.Grant, now int64) (mayGive bool) {
	if g.Starting {
		acc.StartingUntilNs = now + min(g.WaitNs, quota.MaxRememberNs)
	}
	if number != acc.underWay {
		return false
	}
	acc.underWay = 0
	acc.Enlist() // for what has changed since the report
	if !g.Noted {
		acc.SilentUntilNs = now + quota.MaxRememberNs
		return false
	}
	acc.sums.NoteGrant(number, g.Units) // it does not refuse: what is under way is the newest report
	if g.Failed {
		return false
	}
	acc.sums.AddGiven(g.Units)
	return true
}

// GiveUp ends the report of that number without an answer. If one comes all the same, it grants no units.
func (acc *Account) GiveUp(number uint64) {
	if number == acc.underWay {
		acc.underWay = 0
	}
}
