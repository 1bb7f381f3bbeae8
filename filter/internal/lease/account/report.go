package account

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// reporting is how far the reports of an account are. It may be in several of these at once, or in none:
//
//	listed     It may have to be reported. An ask for no units is queued for each account that Book.Due returns.
//	claimed    A queued ask will report it: such an ask, or one by which requests ask for its units. There may be more.
//	under way  An ask was sent with the report. What changes meanwhile is reported after it. If another ask has claimed
//	           the account, that waits.
//
// Who changes that:
//
//	by           when                                    the account then
//	Enlist       the store should know what has changed  is listed, unless it is claimed or under way
//	Due          it has been listed                      is not listed: it gets an ask, or has one, or need not be
//	                                                     reported
//	Claim        an ask is queued                        is claimed once more
//	BeginReport  the ask is sent                         is under way
//	Unclaim      the ask is sent, or over without that   is claimed once less, and listed as by Enlist
//	EndReport    the report has an answer                is not under way, and listed as by Enlist
//	GiveUp       it has none, or none in time            is not under way. Sweep lists it within a second, if nobody
//	                                                     does sooner
type reporting struct {
	firstUnderWay uint64 // the number of the first report that is under way, 0 if none is: see BeginReport
	askedBefore   uint32 // by the parts of the ask whose reports are under way: its next one counts these units as held
	claims        uint32 // by queued asks
	repeatNs      int64  // when what is held must be reported, if nothing changes
	isListed      bool   // for Book.Due
}

// hasAsk reports whether the account is claimed or under way.
func (acc *Account) hasAsk() bool { return acc.claims > 0 || acc.IsUnderWay() }

// Enlist puts the account on the list of Book.Due, where it is once.
func (acc *Account) Enlist() {
	if !acc.isListed && !acc.hasAsk() {
		acc.isListed = true
		acc.book.listed = append(acc.book.listed, acc)
	}
}

// mustReport reports whether an ask must be queued to report the account. If its key is silent, Sweep lists it later.
func (acc *Account) mustReport(now int64) bool {
	if acc.hasAsk() || acc.SilentUntilNs > now || acc.sums.Idle() {
		return false
	}
	return acc.sums.Changed() || now >= acc.repeatNs // what is held is repeated if nothing changes
}

// Claim leaves the account to an ask that is queued.
func (acc *Account) Claim() { acc.claims++ }

// Unclaim ends the claim of an ask that is not queued any more.
func (acc *Account) Unclaim() {
	acc.claims--
	acc.Enlist()
}

// IsUnderWay reports whether a report of the account is under way: an ask that has claimed it must wait.
func (acc *Account) IsUnderWay() bool { return acc.firstUnderWay > 0 }

// BeginReport writes what the worker holds into a part of an ask that is being sent. The report is under way from then
// on.
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
func (acc *Account) BeginReport(p *quota.Part, now int64) {
	number := acc.book.newReportNumber()
	if !acc.IsUnderWay() {
		acc.firstUnderWay, acc.askedBefore = number, 0
	}
	p.Report = acc.sums.NewReport(acc.worker, number, acc.askedBefore)
	acc.askedBefore = limit.AddSaturating(acc.askedBefore, p.Waiting)
	acc.repeatNs = now + acc.HoldNs()/limit.HoldParts
}

// hasUnderWay reports whether that report is under way. Those that are have the newest numbers.
func (acc *Account) hasUnderWay(number uint64) bool {
	return acc.IsUnderWay() && number >= acc.firstUnderWay
}

// EndReport ends the report of that number by what the service has granted for it:
//
//	the report                           then
//	is not under way: given up, or lost  nothing changes
//	is of an earlier part of the ask     it is still under way: the last part ends it
//	is the newest one, and not Noted     the key is silent, and nothing is under way
//	is the newest one, and Noted         the store knows it, and nothing is under way
//
// mayGive says whether the grant gives units. If so, the account has them as given then: what no request gets of them
// is to be dropped. It goes by whether the report was under way, and by the grant:
//
//	Noted  Failed  the store                                   mayGive
//	yes    no      has the report, and has decided             yes
//	yes    yes     has the report, but is Starting             no
//	no     yes     has failed                                  no
//	no     no      may lack it, if the service is older, or    no
//	               have too much as held: an undo has failed
//
// Starting counts, whatever has become of the report.
func (acc *Account) EndReport(number uint64, g *quota.Grant, now int64) (mayGive bool) {
	if g.Starting {
		acc.StartingUntilNs = now + min(g.WaitNs, quota.MaxRememberNs)
	}
	if !acc.hasUnderWay(number) {
		return false
	}
	if number == acc.sums.NewestReport() {
		acc.firstUnderWay = 0
		acc.Enlist() // for what has changed since the report
		if g.Noted {
			acc.sums.NoteGrant(number, g.Units)
		} else {
			acc.SilentUntilNs = now + quota.MaxRememberNs
		}
	}
	mayGive = g.Noted && !g.Failed
	if mayGive {
		acc.sums.AddGiven(g.Units)
	}
	return mayGive
}

// GiveUp ends the report of that number without an answer. If one comes all the same, it grants no units.
func (acc *Account) GiveUp(number uint64) {
	if acc.hasUnderWay(number) {
		acc.firstUnderWay = 0
	}
}
