package lease

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// The life of an account's report:
//
//	       list          writeReports                   endReport
//	------------> listed ------------> under way -------------------------> answered
//	                ^                   |    |
//	                +--- reportAgain ---+    |   without an answer: the stream has ended, the ask is late,
//	                |                        |   or the message was not sent
//	                |                        |
//	                +-- renew -- given up <--+   giveUpReports: the result is Busy or Unknown
//
//	listed     It is in accounts.listed. If it mustReport, queueReports queues an ask for no units that
//	           reports it, unless a request's ask for units of its key does.
//	under way  account.asked is the ask that has the report.
//	answered   If nothing has changed since, there is nothing to report for an eighth of the hold.
//	given up   The service takes no reports now. renew lists the account again within a second.
//
// An account that changes while its report is under way is listed at once: it is both. queueReports passes over it, and
// endReport lists it again.
//
// A report that has no answer may have arrived or not. The next one says all that it said.
//
// Who calls what:
//
//	list           whoever changes an account; unqueue, endReport, reportAgain, renew and listAll
//	listAll        StreamEnded, Inherit
//	writeReports   Flush, by stampAndPack: for each ask that it packs
//	endReport      Receive, by distribute
//	reportAgain    Flush if nothing was sent, endLate, StreamEnded
//	giveUpReports  endWaits if the service is Busy, defineAgain, and reportAgain
//	renew          Tick

// queueReports queues an ask for no units for each listed account that must be reported, unless a
// queued ask reports it already. It passes over an account whose report is under way, or whose key is
// silent: endReport, reportAgain or renew lists it again.
func (c *Client) queueReports(now int64) {
	accs := &c.worker.accounts
	if len(accs.listed) == 0 {
		return
	}
	room, n := c.roomForReports(), 0
	for ; n < len(accs.listed) && room > 0; n++ {
		acc := accs.listed[n]
		acc.isListed = false
		if acc.asked == nil && acc.silentNs <= now && acc.mustReport(now) {
			nothing := quota.Part{Definition: acc.definition.ID, Key: acc.key}
			c.askAhead([]part{{definition: acc.definition, account: acc, Wire: nothing}})
			room--
		}
	}
	left := copy(accs.listed, accs.listed[n:])
	clear(accs.listed[left:])
	accs.listed = accs.listed[:left]
}

// roomForReports is how many more asks for nothing may be queued or under way. Reports fill what
// requests leave of a message, and at least half of it. Flush sends the next message after the results
// of the last one. So a worker with maxAccounts to report needs 129 messages. If a round trip takes
// 15 ms or less, a store that is starting has all the reports before it begins to grant.
func (c *Client) roomForReports() int {
	reports, others := 0, 0
	for _, asks := range [...][]*ask{c.queue.list, c.sent.list} {
		for _, a := range asks {
			if len(a.waiters) == 0 && a.parts[0].holds() {
				reports++
			} else {
				others++
			}
		}
	}
	return max(mostAsks/2, mostAsks-others) - reports
}

// awaitsReport reports whether the ask must wait, because a report of one of its accounts is under way.
func (a *ask) awaitsReport() bool {
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.asked != nil {
			return true
		}
	}
	return false
}

// writeReports writes reports of the ask's accounts, as they are now, into its parts. If rules share a counter,
// a request that matches them has a part for each, all with one account. Each part reports as held what those
// before it ask for too, because it may be granted. For example, two rules with one counter, a request that
// costs 2, and a worker that holds 3 of the key:
//
//	part  rule    asks for  its report         endReport
//	0     first   2         #7, held 3         gives the units, and leaves the report to part 1: isReportedLater
//	1     second  2         #8, held 3 + 2     gives the units, and ends the account's report by NoteGrant
func (a *ask) writeReports(accs *accounts, now int64) {
	for i := range a.parts {
		p, earlier := &a.parts[i], uint32(0)
		if !p.holds() {
			continue
		}
		p.account = accs.recall(p.account)
		for _, before := range a.parts[:i] {
			if before.account == p.account {
				earlier = limit.AddSaturating(earlier, before.Wire.Waiting)
			}
		}
		accs.number++
		p.Wire.Report = p.account.NewReport(p.account.worker, accs.number, earlier)
		p.account.asked, p.account.reportedNs = a, now
	}
}

// isReportedLater reports whether a later part of the ask than part i reports the same account.
func (a *ask) isReportedLater(i int) bool {
	for later := i + 1; later < len(a.parts); later++ {
		if a.parts[later].account == a.parts[i].account {
			return true
		}
	}
	return false
}

// giveUpReports says that the accounts wait for the ask's result no longer: if it comes later, it grants
// no units by these reports. It returns the accounts that did wait.
func (a *ask) giveUpReports() (accounts []*account) {
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.asked == a {
			acc.asked = nil
			accounts = append(accounts, acc)
		}
	}
	return accounts
}

// reportAgain has the ask's accounts reported with the next message: their reports may be lost.
func (accs *accounts) reportAgain(a *ask) {
	for _, acc := range a.giveUpReports() {
		accs.list(acc)
	}
}

// endReport notes in the account of part i of the ask what the grant says of its report, and returns
// whether the grant may give units. The service has granted them to the worker as it was reported
// there, so only the account's newest report counts.
func (accs *accounts) endReport(g *grant, a *ask, i int) (gives bool) {
	acc := a.parts[i].account
	accs.list(acc) // for what has changed since the report, or was passed over while it was under way
	if g.Starting {
		acc.startNs = g.cameNs + min(g.WaitNs, maxRememberNs)
	}
	switch {
	case acc.asked != a: // another ask has the newest report, or this one was given up
		return false
	case a.isReportedLater(i): // it has the newest report, which counts these units as held
		return true
	case !g.Noted: // the service's store failed, or the service knows no reports
		acc.asked, acc.silentNs = nil, g.cameNs+maxRememberNs
		return false
	default: // this is the newest report
		acc.asked = nil
		acc.NoteGrant(a.parts[i].Wire.Number, g.Units)
		return true
	}
}
