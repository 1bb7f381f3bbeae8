package lease

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// How holds over all proxies are reported: read the head of shared/quota/hold.go first. It says
// what an Account is, and how the store counts by its reports. This file decides when which
// account is reported, and in which ask.
//
// The life of an account's report:
//
//	       list          writeReports                   endReport
//	------------> listed ------------> under way -------------------------> answered
//	                ^                      |
//	                +----- reportAgain ----+   without an answer: the stream has ended, the ask is late,
//	                                           or the message was not sent
//
//	listed     It is in accounts.listed. If it mustReport, queueReports queues an ask for no units that
//	           reports it, unless a request's ask for units of its key does.
//	under way  account.asked is the ask that has the report.
//	answered   If nothing has changed since, there is nothing to report for an eighth of the hold.
//
// A report that has no answer may have arrived or not. The next one says all that it said.

// accounts are the accounts of a worker: from a request's Take or Settle to a report on the wire.
type accounts struct {
	byName  map[accountName]*account
	listed  []*account // that queueReports looks at: it reports those that mustReport
	worker  uint64     // by which the service knows this worker
	number  uint64     // of the newest report
	renewNs int64      // when to look which accounts are to be renewed
	name    []byte     // memory for an accountName
}

// accountName is what an account is found by: counter and key, and for an inherited account also the
// worker that opened it, because the key may have an account of this worker too.
type accountName string

// account is what this worker holds of one key, and what the service knows of that by its
// reports. The service hears of each change, and each eighth of the hold.
type account struct {
	quota.Account
	name       accountName
	worker     uint64 // that reports it: an earlier configuration's, if that has ended
	key        [16]byte
	definition *quota.Definition
	asked      *ask         // in which its newest report is under way, nil if that is answered or given up
	isListed   bool         // among accounts.listed
	reportedNs int64        // when it was reported last
	usedNs     int64        // when a request last wanted units
	silentNs   int64        // until when the service cannot reach the key
	startNs    int64        // until when the store is starting: it takes reports, and grants nothing
	block      *blockDenial // of a blocked key, nil for all others: a worker has many accounts
}

// blockDenial is a denial that the worker remembers of a blocked key.
type blockDenial struct {
	decide.Grant
	untilNs int64 // no longer than the key is blocked, and maxRememberNs
}

const (
	// forgetNs is how long nobody must want units of an idle account before it is forgotten:
	// longer than a request waits.
	forgetNs = 10_000_000_000
	// maxAccounts is how many keys a worker reports: if the service does not answer, each of
	// them stays. on_unavailable decides about one more.
	maxAccounts = 1 << 16
	// renewEveryNs is how often renew goes through the accounts: within an eighth of the shortest
	// hold, which is 1.25 s.
	renewEveryNs = 1_000_000_000
)

// holdNs is how long the service holds the units of a worker that reports nothing.
func (acc *account) holdNs() int64 {
	return acc.definition.Windows[len(acc.definition.Windows)-1].PeriodNs
}

// mustReport reports whether the service is to hear of the account: it has changed, or an
// eighth of the hold has passed.
func (acc *account) mustReport(now int64) bool {
	return acc.Changed() || !acc.Idle() && now-acc.reportedNs >= acc.holdNs()/limit.HoldParts
}

// noteBlock remembers a grant that finds the key blocked.
func (acc *account) noteBlock(g *grant) {
	if !g.remembersBlock() {
		return
	}
	acc.block = &blockDenial{
		Grant: decide.Grant{
			Received: true, Denied: true, Blocked: true, WaitNs: g.WaitNs, NowNs: g.cameNs, Standings: g.standings,
		},
		untilNs: min(g.blockNs, g.cameNs+maxRememberNs),
	}
}

func (accs *accounts) areMany() bool { return len(accs.byName) >= maxAccounts }

// nameOf is the accountName of a key, in memory that the next call uses.
func (accs *accounts) nameOf(d *quota.Definition, key [16]byte) []byte {
	accs.name = append(append(accs.name[:0], d.Counter[:]...), key[:]...)
	return accs.name
}

// find returns the account of a key, nil if there is none.
func (accs *accounts) find(d *quota.Definition, key [16]byte) *account {
	return accs.byName[accountName(accs.nameOf(d, key))]
}

// open returns the account of a key from which a request wants units, a new one if there is none.
func (accs *accounts) open(d *quota.Definition, key [16]byte, now int64) *account {
	name := accs.nameOf(d, key)
	acc := accs.byName[accountName(name)]
	if acc == nil {
		acc = &account{name: accountName(name), worker: accs.worker, key: key}
		accs.byName[acc.name] = acc
	}
	acc.definition, acc.usedNs = d, now
	return acc
}

// recall returns the account that acc's key has by now. If acc was forgotten and no other was
// opened since, it is acc again.
func (accs *accounts) recall(acc *account) *account {
	if other := accs.byName[acc.name]; other != nil {
		return other
	}
	accs.byName[acc.name] = acc
	return acc
}

// list has the account reported with the next message, if it mustReport.
func (accs *accounts) list(acc *account) {
	if !acc.isListed {
		acc.isListed = true
		accs.listed = append(accs.listed, acc)
	}
}

// listAll has all that is held reported anew: the service, or its store, may have lost it.
func (accs *accounts) listAll(now int64) {
	for _, acc := range accs.byName {
		if !acc.Idle() {
			acc.reportedNs = now - acc.holdNs()
			accs.list(acc)
		}
	}
}

// renew looks, once a second, which accounts must be reported, and forgets those that hold
// nothing.
func (accs *accounts) renew(now, timeoutNs int64) {
	if len(accs.byName) == 0 || now < accs.renewNs {
		return
	}
	accs.renewNs = now + renewEveryNs
	for name, acc := range accs.byName {
		switch {
		case acc.mustReport(now):
			accs.list(acc)
		case acc.Idle() && now-acc.usedNs > forgetNs+timeoutNs:
			delete(accs.byName, name)
		}
	}
}

// queueReports queues an ask for no units for each account that must be reported, unless a queued
// ask reports it already. It passes over an account whose report is under way, or whose key is
// silent: endReport, reportAgain or renew lists it again. Reports fill what requests leave of a
// message, and at least half of it. Flush sends the next message after the results of the last one.
// So a worker with maxAccounts due needs 129 messages. If a round trip takes 15 ms or less, a store
// that is starting has all the reports before it begins to grant.
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

// roomForReports is how many more asks for nothing may be queued or under way.
func (c *Client) roomForReports() int {
	reports, others := 0, 0
	for _, asks := range [...][]*ask{c.queue.list, c.sent.list} {
		for _, a := range asks {
			if len(a.waiters) == 0 && a.parts[0].account != nil {
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
		if p.account == nil {
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
	accs.list(acc)
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

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet, and
// has it reported.
func (c *Client) Inherit(from *Client) {
	accs, old := &c.worker.accounts, &from.worker.accounts
	accs.number = max(accs.number, old.number) // the store takes no lower numbers: ErrStale

	renumbered := map[*quota.Definition]*quota.Definition{} // the old definitions under new numbers
	for _, acc := range old.byName {
		if acc.Idle() {
			continue
		}
		d := renumbered[acc.definition]
		if d == nil {
			d = new(quota.Definition)
			*d = *acc.definition
			d.ID = c.worker.newNumber()
			renumbered[acc.definition] = d
		}
		if acc.worker == old.worker { // it was not inherited before
			acc.name += accountName(strconv.FormatUint(acc.worker, 16))
		}
		acc.definition = d
		acc.asked = nil
		acc.isListed = false
		accs.byName[acc.name] = acc
	}
	accs.listAll(c.worker.clock.Monotonic())
	clear(old.byName)
}
