package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// HoldSource is the source of units of a rule of scope cluster that holds them until answers
// are known: each request asks for its cost, and nothing is leased. What the worker holds of
// a key is its account (accounts.go), and the service gets reports of it.
type HoldSource struct{ common }

// part is what is asked for the subject's key.
func (c *HoldSource) part(s *decide.Subject, cost uint32) Part {
	d := c.definition(s)
	a := c.worker.accounts.open(d, c.keyOf(s), c.worker.clock.Monotonic())
	return Part{definition: d, subject: s, source: c, account: a, Part: quota.Part{
		Definition: d.ID, Key: a.key, Cost: cost, Waiting: cost, Shadow: s.Shadow,
	}}
}

func (c *HoldSource) keyOf(s *decide.Subject) [16]byte { return c.rule.Subjects.QuotaKey(&s.Subject) }

// Check decides by the grant that the request has waited for.
func (c *HoldSource) Check(s *decide.Subject, now int64) decide.Outcome {
	c.begin(s, now)
	if g := &s.Quota.Grant; g.Decides(s.Cost, s.Quota.NowNs) {
		return c.checkGrant(s, g, now)
	}
	if s.Cost == 0 {
		return forNothing(s)
	}
	next := c.cannotAsk(s)
	if next == decide.Pending {
		next = c.worker.tooFew(s)
	}
	if next == decide.Silent || next == decide.Starting {
		return c.alone(s, now, next)
	}
	return next
}

// Recheck is Check.
func (c *HoldSource) Recheck(s *decide.Subject, now int64) decide.Outcome { return c.Check(s, now) }

// checkGrant decides by the service's grant.
func (c *HoldSource) checkGrant(s *decide.Subject, g *decide.Grant, now int64) decide.Outcome {
	s.Known = len(g.Standings) >= len(c.rule.Subjects.Windows)
	if !g.Denied {
		s.Quota.From = decide.OwnGrant
		return decide.HasRoom
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
	h := &c.worker.accounts
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
	if len(c.worker.accounts.byName) == 0 {
		return nil
	}
	return c.worker.accounts.find(c.definition(s), c.keyOf(s))
}

// Take holds the cost.
func (c *HoldSource) Take(s *decide.Subject) decide.Outcome {
	switch s.Quota.From {
	case decide.OwnGrant:
		a := s.Account.(*account)
		s.Quota.Grant.Units -= s.Cost
		a.Given -= s.Cost
		a.Held += s.Cost
		s.Hold = state.Hold{Units: s.Cost}
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
	if taken != decide.Taken || c.account(s) == nil && c.worker.accounts.areMany() {
		return taken
	}
	a := c.part(s, 0).account
	a.Held += s.Cost
	s.Account = a
	c.worker.accounts.markDue(a)
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
			c.worker.accounts.markDue(a)
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
	if h.InTable() {
		lapsed, ok = c.local.Settle(h, cost, now)
	}
	a, reports := h.Account.(*account)
	if !reports {
		return lapsed, ok
	}
	a = c.worker.accounts.recall(a)
	if units := h.Units; h.HasLapsed() { // they are charged already
		a.Settle(0, cost-min(cost, units))
	} else {
		a.Settle(units, cost)
	}
	c.worker.accounts.markDue(a)
	return lapsed, ok
}

// Renew charges a hold that max_hold has ended. Accounts are renewed by the client's tick.
func (c *HoldSource) Renew(h *decide.Hold, at decide.Clocks) decide.Renewal {
	ends := h.EndNs > 0
	if h.InTable() && (!ends || at.MonotonicNs < h.EndNs) {
		c.local.Renew(h, at)
	}
	a, reports := h.Account.(*account)
	if !reports || !ends || at.MonotonicNs < h.EndNs+a.holdNs() {
		return decide.NotDue
	}
	a.Settle(h.Units, h.Units)
	c.worker.accounts.markDue(a)
	return decide.Lapsed
}

// Held is what all proxies hold of the key, by the last grant.
func (c *HoldSource) Held(s *decide.Subject) uint32 {
	if s.Quota.From == decide.OwnShare {
		return c.local.Held(s)
	}
	g := &s.Quota.Grant
	if !g.Received || len(g.Standings) == 0 {
		return 0
	}
	return g.Standings[len(g.Standings)-1].Used
}

// Usage is how the key stands over all proxies, by the grant.
func (c *HoldSource) Usage(s *decide.Subject, window int) *limit.Usage {
	if s.Quota.From == decide.OwnShare {
		return c.local.Usage(s, window)
	}
	w, g := &s.Limits.Windows[window], &s.Quota.Grant
	switch {
	case !g.Received || window >= len(g.Standings):
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
