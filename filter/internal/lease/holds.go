package lease

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// HoldSource is the source of units of a rule of scope cluster that holds them until answers
// are known: each request asks for its cost, and nothing is leased. What the worker holds of
// a key is an account, of which the service gets reports.
type HoldSource struct{ common }

// part is what is asked for the subject's key.
func (c *HoldSource) part(s *decide.Subject, cost uint32) Part {
	d := c.definition(s)
	a := c.worker.holds.open(d, c.keyOf(s), c.worker.clock.Monotonic())
	return Part{definition: d, subject: s, source: c, account: a, Part: quota.Part{
		Definition: d.ID, Key: a.key, Cost: cost, Waiting: cost, Shadow: s.Shadow,
	}}
}

func (c *HoldSource) keyOf(s *decide.Subject) [16]byte { return c.rule.Subjects.QuotaKey(&s.Subject) }

// Check decides by the answer that the request has waited for.
func (c *HoldSource) Check(s *decide.Subject, now int64) decide.Outcome {
	c.begin(s, now)
	if g := &s.Quota.Grant; g.Decides(s.Cost, s.Quota.NowNs) {
		return c.checkGrant(s, g, now)
	}
	if s.Cost == 0 {
		return forNothing(s)
	}
	next := c.worker.tooFew(s)
	if why := c.cannotAsk(s); why != decide.Pending {
		return c.alone(s, now, why)
	}
	if next == decide.Silent {
		return c.alone(s, now, next)
	}
	return next
}

// Recheck is Check.
func (c *HoldSource) Recheck(s *decide.Subject, now int64) decide.Outcome { return c.Check(s, now) }

// checkGrant decides by the service's answer.
func (c *HoldSource) checkGrant(s *decide.Subject, g *decide.Grant, now int64) decide.Outcome {
	s.Known = len(g.Standings) >= len(c.rule.Subjects.Windows)
	if !g.Denied {
		s.Quota.From = decide.OwnGrant
		return decide.Granted
	}
	s.PassNs = passNs(now, g.WaitNs)
	if g.HeldBack {
		return decide.HeldBack
	}
	return decide.Denied
}

// cannotAsk says why the service cannot be asked for the subject's key: Silent if it answers
// nothing, or nothing about this key, Starting if it grants nothing yet. Otherwise it is Pending.
func (c *HoldSource) cannotAsk(s *decide.Subject) decide.Outcome {
	h := &c.worker.holds
	switch a := c.account(s); {
	case c.worker.Silent, a == nil && h.areMany():
		return decide.Silent
	case a == nil:
		return decide.Pending
	case a.startNs > s.Quota.NowNs:
		return decide.Starting
	case a.silentNs > s.Quota.NowNs:
		return decide.Silent
	}
	return decide.Pending
}

// account is the account of the subject's key, nil if there is none.
func (c *HoldSource) account(s *decide.Subject) *account {
	if len(c.worker.holds.accounts) == 0 {
		return nil
	}
	return c.worker.holds.find(c.definition(s), c.keyOf(s))
}

// Take holds the cost.
func (c *HoldSource) Take(s *decide.Subject) decide.Outcome {
	switch s.Quota.From {
	case decide.OwnGrant:
		a := s.Account.(*account)
		s.Quota.Grant.Units -= s.Cost
		a.Given -= s.Cost
		a.Held += s.Cost
		s.Receipt = state.Hold{Units: s.Cost}
		return decide.Taken
	case decide.OwnShare:
		return c.takeShare(s)
	default:
		return decide.Failed
	}
}

// takeShare holds the cost in this proxy's own table, and reports it later, unless there are
// too many accounts for one more.
func (c *HoldSource) takeShare(s *decide.Subject) decide.Outcome {
	s.Account = nil
	taken := c.local.Take(s)
	if taken != decide.Taken || c.account(s) == nil && c.worker.holds.areMany() {
		return taken
	}
	a := c.part(s, 0).account
	a.Held += s.Cost
	s.Account = a
	c.worker.holds.markDue(a)
	return taken
}

// Refund puts the units back to where they were taken from.
func (c *HoldSource) Refund(s *decide.Subject, now int64) bool {
	a, reports := s.Account.(*account)
	switch s.Quota.From {
	case decide.OwnGrant:
		a.Held -= s.Cost
		a.Given += s.Cost
		s.Quota.Grant.Units += s.Cost
		return true
	case decide.OwnShare:
		if reports {
			a.Held -= s.Cost
			c.worker.holds.markDue(a)
		}
		return c.local.Refund(s, now)
	default:
		return false
	}
}

// Settle ends what the request holds, and charges its cost. What was held while the service was
// silent counts in this proxy's own table as well.
func (c *HoldSource) Settle(h *decide.Hold, cost uint32, now int64) (lapsed, ok bool) {
	ok = true
	if h.Receipt.InTable() {
		lapsed, ok = c.local.Settle(h, cost, now)
	}
	a, reports := h.Account.(*account)
	if !reports {
		return lapsed, ok
	}
	a = c.worker.holds.recall(a)
	if units := h.Receipt.Units; h.HasLapsed() { // they are charged already
		a.Settle(0, cost-min(cost, units))
	} else {
		a.Settle(units, cost)
	}
	c.worker.holds.markDue(a)
	return lapsed, ok
}

// Renew charges a hold that max_hold has ended. Accounts are renewed by the client's tick.
func (c *HoldSource) Renew(h *decide.Hold, now, heldNs int64) decide.Renewal {
	ends, monotonic := h.EndNs > 0, c.worker.clock.Monotonic()
	if h.Receipt.InTable() && (!ends || monotonic < h.EndNs) {
		c.local.Renew(h, now, heldNs)
	}
	a, reports := h.Account.(*account)
	if !reports || !ends || monotonic < h.EndNs+a.holdNs() {
		return decide.NotDue
	}
	a.Settle(h.Receipt.Units, h.Receipt.Units)
	c.worker.holds.markDue(a)
	return decide.Lapsed
}

// Held is what all proxies hold of the key, by the last answer.
func (c *HoldSource) Held(s *decide.Subject) uint32 {
	if s.Quota.From == decide.OwnShare {
		return c.local.Held(s)
	}
	g := &s.Quota.Grant
	if !g.Answered || len(g.Standings) == 0 {
		return 0
	}
	return g.Standings[len(g.Standings)-1].Used
}

// Usage is how the key stands over all proxies, by the answer.
func (c *HoldSource) Usage(s *decide.Subject, window int) *limit.Usage {
	if s.Quota.From == decide.OwnShare {
		return c.local.Usage(s, window)
	}
	w, g := &s.Limits.Windows[window], &s.Quota.Grant
	switch {
	case !g.Answered || window >= len(g.Standings):
		c.usage = limit.Usage{Log: c.usage.Log[:0]}
	case w.Algorithm == limit.Concurrency:
		c.usage = limit.Usage{Used: g.Standings[window].Used}
	default:
		st := &g.Standings[window]
		c.usage = w.Standing(s.Record.Now, st.Used, max(st.ResetNs-s.Quota.NowNs, 0), c.usage.Log)
	}
	return &c.usage
}

// Operate returns 0: nothing is leased. While the service is silent, the subject has what this
// proxy has counted by itself.
func (c *HoldSource) Operate(s *decide.Subject, _ string, _ int, _ uint32, now int64) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	s.Quota.From, s.Quota.NowNs = decide.Nowhere, c.worker.clock.Monotonic()
	if c.cannotAsk(s) != decide.Pending && c.local != nil && c.checkShare(s, now) == decide.Failed {
		return 0, local.ErrStore
	}
	return 0, nil
}

func (c *HoldSource) known(s *decide.Subject) *result.Lease {
	known := &result.Lease{}
	if c.cannotAsk(s) != decide.Pending {
		known.Silent = string(c.rule.Policy.OnUnavailable)
	}
	return known
}

// holds are the accounts of a worker.
type holds struct {
	accounts map[string]*account // by their names
	due      []*account          // to be reported
	worker   uint64              // by which the service knows this worker
	number   uint64              // of the newest report
	renewNs  int64               // when to look which accounts are to be renewed
	name     []byte              // memory for a name
}

// account is what this worker holds of one key, and what the service knows of that by its
// reports. The service hears of each change, and each eighth of the hold.
type account struct {
	quota.Account
	name       string // counter and key
	worker     uint64 // that reports it: an earlier configuration's, if that has ended
	key        [16]byte
	definition *quota.Definition
	asked      *ask  // carries its newest report, and has no answer
	listed     bool  // among holds.due
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
	return a.Due() || !a.Idle() && now-a.reportedNs >= a.holdNs()/limit.HoldParts
}

func (h *holds) areMany() bool { return len(h.accounts) >= maxAccounts }

// find returns the account of a key, nil if there is none.
func (h *holds) find(d *quota.Definition, key [16]byte) *account {
	h.name = append(append(h.name[:0], d.Counter[:]...), key[:]...)
	return h.accounts[string(h.name)]
}

// open returns the account of a key from which a request wants units, a new one if there is none.
func (h *holds) open(d *quota.Definition, key [16]byte, now int64) *account {
	a := h.find(d, key)
	if a == nil {
		a = &account{name: string(h.name), worker: h.worker, key: key}
		h.accounts[a.name] = a
	}
	a.definition, a.usedNs = d, now
	return a
}

// recall returns the account that a's key has by now. If a was forgotten and no other was
// opened since, it is a again.
func (h *holds) recall(a *account) *account {
	if other := h.accounts[a.name]; other != nil {
		return other
	}
	h.accounts[a.name] = a
	return a
}

// markDue has the account reported with the next message.
func (h *holds) markDue(a *account) {
	if !a.listed {
		a.listed = true
		h.due = append(h.due, a)
	}
}

// markAllDue has all that is held reported anew: the service, or its store, may have lost it.
func (h *holds) markAllDue(now int64) {
	for _, a := range h.accounts {
		if !a.Idle() {
			a.reportedNs = now - a.holdNs()
			h.markDue(a)
		}
	}
}

// renew looks, once a second, which accounts must be reported, and forgets those that hold
// nothing.
func (h *holds) renew(now, timeoutNs int64) {
	if len(h.accounts) == 0 || now < h.renewNs {
		return
	}
	h.renewNs = now + maxLookNs
	for name, a := range h.accounts {
		switch {
		case a.mustReport(now):
			h.markDue(a)
		case a.Idle() && now-a.usedNs > forgetNs+timeoutNs:
			delete(h.accounts, name)
		}
	}
}

// queueReports queues an ask for nothing for each account that is to be reported, unless an ask
// is queued already that reports it. They take what requests leave of a message, at least half,
// and wait for answers before there are more. So maxAccounts that are due at once take 129
// messages: with round trips of up to 15 ms a store that is starting hears of all of them before
// it grants units.
func (c *Client) queueReports(now int64) {
	h := &c.worker.holds
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

// report puts reports of the ask's accounts, as they are now, into its parts. What the parts
// before one ask for may be granted, so it counts as held.
func (a *ask) report(h *holds, now int64) {
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
		p.Report = p.account.Report(p.account.worker, h.number, earlier)
		p.account.asked, p.account.reportedNs = a, now
	}
}

// unreport ends the wait for an answer to the ask's reports: one that comes later grants nothing.
// It returns the accounts, of which the service knows nothing new.
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
func (h *holds) reportAgain(a *ask) {
	for _, acc := range a.unreport() {
		h.markDue(acc)
	}
}

// noteAnswer notes what an answer says of the report in a part of the ask. Only an answer to an
// account's last report grants units.
func (h *holds) noteAnswer(g *grant, a *ask, i int) {
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
		acc.Noted(p.Number, g.Units)
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
	h, old := &c.worker.holds, &from.worker.holds
	h.number = max(h.number, old.number)
	definitions := map[*quota.Definition]*quota.Definition{}
	for _, a := range old.accounts {
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
		h.accounts[a.name] = a
	}
	h.markAllDue(c.worker.clock.Monotonic())
	clear(old.accounts)
}
