package lease

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// How holds over all proxies are reported: read the head of shared/quota/hold.go first. It says
// what an Account is, and how the store counts by its reports. This file decides when which
// account is reported, and in which ask.

// accounts are the accounts of a worker: from a request's Take or Settle to a report on the wire.
type accounts struct {
	byName  map[string]*account // by their names
	due     []*account          // to be reported
	worker  uint64              // by which the service knows this worker
	number  uint64              // of the newest report
	renewNs int64               // when to look which accounts are to be renewed
	name    []byte              // memory for a name
}

// account is what this worker holds of one key, and what the service knows of that by its
// reports. The service hears of each change, and each eighth of the hold.
type account struct {
	quota.Account
	name       string // counter and key
	worker     uint64 // that reports it: an earlier configuration's, if that has ended
	key        [16]byte
	definition *quota.Definition
	asked      *ask  // carries its newest report, and has no result
	listed     bool  // among accounts.due
	reportedNs int64 // when it was reported last
	usedNs     int64 // when a request last wanted units
	silentNs   int64 // until when the service cannot reach the key
	startNs    int64 // until when the store is starting: it takes reports, and grants nothing
}

const (
	// forgetNs is how long nobody must want units of an idle account before it is forgotten:
	// longer than a request waits.
	forgetNs = 10_000_000_000
	// maxAccounts is how many keys a worker reports: if the service does not answer, each of
	// them stays. on_unavailable decides about one more.
	maxAccounts = 1 << 16
)

// holdNs is how long the service holds the units of a worker that reports nothing.
func (a *account) holdNs() int64 { return a.definition.Windows[len(a.definition.Windows)-1].PeriodNs }

// mustReport reports whether the service is to hear of the account: it has changed, or an
// eighth of the hold has passed.
func (a *account) mustReport(now int64) bool {
	return a.Changed() || !a.Idle() && now-a.reportedNs >= a.holdNs()/limit.HoldParts
}

func (h *accounts) areMany() bool { return len(h.byName) >= maxAccounts }

// find returns the account of a key, nil if there is none.
func (h *accounts) find(d *quota.Definition, key [16]byte) *account {
	h.name = append(append(h.name[:0], d.Counter[:]...), key[:]...)
	return h.byName[string(h.name)]
}

// open returns the account of a key from which a request wants units, a new one if there is none.
func (h *accounts) open(d *quota.Definition, key [16]byte, now int64) *account {
	a := h.find(d, key)
	if a == nil {
		a = &account{name: string(h.name), worker: h.worker, key: key}
		h.byName[a.name] = a
	}
	a.definition, a.usedNs = d, now
	return a
}

// recall returns the account that a's key has by now. If a was forgotten and no other was
// opened since, it is a again.
func (h *accounts) recall(a *account) *account {
	if other := h.byName[a.name]; other != nil {
		return other
	}
	h.byName[a.name] = a
	return a
}

// markDue has the account reported with the next message.
func (h *accounts) markDue(a *account) {
	if !a.listed {
		a.listed = true
		h.due = append(h.due, a)
	}
}

// markAllDue has all that is held reported anew: the service, or its store, may have lost it.
func (h *accounts) markAllDue(now int64) {
	for _, a := range h.byName {
		if !a.Idle() {
			a.reportedNs = now - a.holdNs()
			h.markDue(a)
		}
	}
}

// renew looks, once a second, which accounts must be reported, and forgets those that hold
// nothing.
func (h *accounts) renew(now, timeoutNs int64) {
	if len(h.byName) == 0 || now < h.renewNs {
		return
	}
	h.renewNs = now + maxLookNs
	for name, a := range h.byName {
		switch {
		case a.mustReport(now):
			h.markDue(a)
		case a.Idle() && now-a.usedNs > forgetNs+timeoutNs:
			delete(h.byName, name)
		}
	}
}

// queueReports queues an ask for no units for each account that must be reported, unless a queued
// ask reports it already. Reports fill what requests leave of a message, and at least half of it.
// Flush sends the next message after the results of the last one. So a worker with maxAccounts due
// needs 129 messages. If a round trip takes 15 ms or less, a store that is starting has all the
// reports before it begins to grant.
func (c *Client) queueReports(now int64) {
	h := &c.worker.accounts
	if len(h.due) == 0 {
		return
	}
	room, n := c.roomForReports(), 0
	for ; n < len(h.due) && room > 0; n++ {
		a := h.due[n]
		a.listed = false
		if a.asked == nil && a.silentNs <= now && a.mustReport(now) {
			report := quota.Part{Definition: a.definition.ID, Key: a.key}
			c.want([]Part{{definition: a.definition, account: a, Part: report}}, nil)
			room--
		}
	}
	left := copy(h.due, h.due[n:])
	clear(h.due[left:])
	h.due = h.due[:left]
}

// roomForReports is how many more asks for nothing may be queued or under way.
func (c *Client) roomForReports() int {
	reports, others := 0, 0
	for _, asks := range [...][]*ask{c.queue, c.sent} {
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

// isReported reports whether a report of one of the ask's accounts is under way.
func (a *ask) isReported() bool {
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.asked != nil {
			return true
		}
	}
	return false
}

// report writes reports of the ask's accounts, as they are now, into its parts. An account may be in
// several parts. Each reports what the parts before it ask for as held, because it may be granted.
func (a *ask) report(h *accounts, now int64) {
	for i := range a.parts {
		p, earlier := &a.parts[i], uint32(0)
		if p.account == nil {
			continue
		}
		p.account = h.recall(p.account)
		for _, before := range a.parts[:i] {
			if before.account == p.account {
				earlier = limit.AddSaturating(earlier, before.Waiting)
			}
		}
		h.number++
		p.Report = p.account.NewReport(p.account.worker, h.number, earlier)
		p.account.asked, p.account.reportedNs = a, now
	}
}

// unreport declares the ask's reports over: a result that comes later grants no units by them. It
// returns the accounts that still waited for that result.
func (a *ask) unreport() (accounts []*account) {
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.asked == a {
			acc.asked = nil
			accounts = append(accounts, acc)
		}
	}
	return accounts
}

// reportAgain has the ask's accounts reported with the next message: their reports may be lost.
func (h *accounts) reportAgain(a *ask) {
	for _, acc := range a.unreport() {
		h.markDue(acc)
	}
}

// noteGrant notes what a grant says of the report in a part of the ask. Only a grant on an
// account's last report grants units.
func (h *accounts) noteGrant(g *grant, a *ask, i int) {
	p := &a.parts[i]
	acc := p.account
	isLast := true
	for j := i + 1; j < len(a.parts); j++ {
		isLast = isLast && a.parts[j].account != acc
	}
	switch {
	case acc.asked != a:
		g.Failed = true
	case !isLast: // the later part has reported the account anew
	case !g.Noted: // or a service that knows no reports
		g.Failed = true
		acc.silentNs = g.nowNs + silenceNs
	default:
		acc.NoteGrant(p.Number, g.Units)
	}
	if isLast && acc.asked == a {
		acc.asked = nil
	}
	if g.Starting {
		acc.startNs = g.nowNs + min(g.WaitNs, silenceNs)
	}
	h.markDue(acc)
}

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet, and
// has it reported.
func (c *Client) Inherit(from *Client) {
	h, old := &c.worker.accounts, &from.worker.accounts
	h.number = max(h.number, old.number)
	definitions := map[*quota.Definition]*quota.Definition{}
	for _, a := range old.byName {
		if a.Idle() {
			continue
		}
		d := definitions[a.definition]
		if d == nil {
			d = new(quota.Definition)
			*d = *a.definition
			d.ID, definitions[a.definition] = c.worker.newNumber(), d
		}
		if a.worker == old.worker { // the key may have an account here
			a.name += strconv.FormatUint(a.worker, 16)
		}
		a.definition, a.asked = d, nil
		a.listed = false
		h.byName[a.name] = a
	}
	h.markAllDue(c.worker.clock.Monotonic())
	clear(old.byName)
}
