package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Stated is the source of units of a rule of scope cluster that holds them until answers are
// known: each request asks for its cost, and nothing is leased.
type Stated struct {
	asking
	nowNs    int64
	usage    limit.Usage
	unstated bool           // there are too many levels for one of the subject's key
	none     decide.Outcome // where nothing decides in the service's place: Silent or Starting
}

// part is what is asked for the subject's key.
func (c *Stated) part(s *decide.Subject, cost uint32) Part {
	d, key := c.definition(s), c.rule.Subjects.QuotaKey(&s.Subject)
	return Part{definition: d, subject: s, source: c, level: c.worker.levelOf(d, key, c.worker.host.Monotonic()), Part: quota.Part{
		Definition: d.ID, Key: key, Cost: cost, Waiting: cost, Shadow: s.Shadow,
	}}
}

// Check decides by the answer that the request has waited for.
func (c *Stated) Check(s *decide.Subject, now int64) decide.Outcome {
	s.Limits.Windows = s.Windows
	s.Record.Now, s.Record.Rebased, s.Record.FromFloor, s.Known, s.PassNs = now, false, false, false, now
	c.nowNs = c.worker.host.Monotonic()
	c.from, c.got = nowhere, c.worker.got(s)
	if g := c.got; g.suffices(s.Cost, c.nowNs) {
		s.Known = len(g.grant.standings) >= len(c.rule.Subjects.Windows)
		if !g.grant.Denied {
			c.from = ownGrant
			return decide.Granted
		}
		if s.PassNs = passNs(now, g.grant.WaitNs, g.grant.WaitNs); g.grant.Held {
			return decide.HeldBack
		}
		return decide.Denied
	}
	if c.got = nil; s.Cost == 0 {
		return forNothing(s, now)
	}
	short := c.worker.short(s)
	if c.isSilent(s) || short == decide.Silent {
		return c.alone(s, now, c.none)
	}
	return short
}

// isSilent reports whether the service answers nothing, or nothing about this key, or grants
// nothing of it yet.
func (c *Stated) isSilent(s *decide.Subject) bool {
	c.unstated, c.none = false, decide.Silent
	if len(c.worker.levels) == 0 {
		return c.worker.Silent
	}
	l := c.worker.find(c.definition(s), c.rule.Subjects.QuotaKey(&s.Subject))
	c.unstated = l == nil && len(c.worker.levels) >= maxLevels
	switch {
	case c.worker.Silent, c.unstated:
		return true
	case l == nil:
		return false
	case l.startNs > c.nowNs:
		c.none = decide.Starting
		return true
	}
	return l.silentNs > c.nowNs
}

// Recheck is Check.
func (c *Stated) Recheck(s *decide.Subject, now int64) decide.Outcome { return c.Check(s, now) }

// Take holds the cost. What this proxy holds while the service is silent is stated later.
func (c *Stated) Take(s *decide.Subject) decide.Outcome {
	switch c.from {
	case ownGrant:
		l := c.got.level
		c.got.units -= s.Cost
		l.Given -= s.Cost
		l.Held += s.Cost
		s.Held, s.Level = state.Hold{Units: s.Cost}, l
		return decide.Taken
	case localTable:
		taken := c.local.Take(s)
		if taken == decide.Taken && !c.unstated {
			l := c.part(s, 0).level
			l.Held += s.Cost
			s.Level = l
			c.worker.state(l)
		}
		return taken
	default:
		return decide.Failed
	}
}

// Refund puts the units back to where they were taken from.
func (c *Stated) Refund(s *decide.Subject, now int64) bool {
	l, isStated := s.Level.(*level)
	if !isStated || c.from == nowhere {
		return false
	}
	l.Held -= s.Cost
	if c.from == ownGrant {
		c.got.units += s.Cost
		l.Given += s.Cost
		return true
	}
	c.worker.state(l)
	return c.local.Refund(s, now)
}

// Settle ends what the request holds, and states its cost. What was held while the service was
// silent counts in this proxy as well.
func (c *Stated) Settle(h *decide.Hold, cost uint32, now int64) (lapsed, ok bool) {
	ok = true
	if h.Receipt.InTable() {
		lapsed, ok = c.local.Settle(h, cost, now)
	}
	l, isStated := h.Level.(*level)
	if !isStated {
		return lapsed, ok
	}
	l = c.worker.remember(l)
	if units := h.Receipt.Units; h.HasLapsed() {
		l.Settle(0, cost-min(cost, units))
	} else {
		l.Settle(units, cost)
	}
	c.worker.state(l)
	return lapsed, ok
}

// Renew has a hold lapse that was not to be renewed any more. Levels are renewed by the
// client's tick.
func (c *Stated) Renew(h *decide.Hold, now, heldNs int64) decide.Renewal {
	ends, monotonic := h.EndNs > 0, c.worker.host.Monotonic()
	if h.Receipt.InTable() && (!ends || monotonic < h.EndNs) {
		c.local.Renew(h, now, heldNs)
	}
	l, isStated := h.Level.(*level)
	if !isStated || !ends || monotonic < h.EndNs+l.holdNs() {
		return decide.NotDue
	}
	l.Settle(h.Receipt.Units, h.Receipt.Units)
	c.worker.state(l)
	return decide.Lapsed
}

// Held is what all proxies hold of the key, by the last answer.
func (c *Stated) Held(s *decide.Subject) uint32 {
	switch {
	case c.from == localTable:
		return c.local.Held(s)
	case c.got == nil || len(c.got.grant.standings) == 0:
		return 0
	}
	return c.got.grant.standings[len(c.got.grant.standings)-1].Used
}

// Usage says how the key stands over all proxies, by the answer.
func (c *Stated) Usage(s *decide.Subject, window int) *limit.Usage {
	w := &s.Limits.Windows[window]
	switch {
	case c.from == localTable:
		return c.local.Usage(s, window)
	case c.got == nil || window >= len(c.got.grant.standings):
		c.usage = limit.Usage{Log: c.usage.Log[:0]}
	case w.Algorithm == limit.Concurrency:
		c.usage = limit.Usage{Used: c.got.grant.standings[window].Used}
	default:
		st := &c.got.grant.standings[window]
		c.usage = w.Standing(s.Record.Now, st.Used, max(st.ResetNs-c.nowNs, 0), c.usage.Log)
	}
	return &c.usage
}

// Operate says that nothing is leased. While the service is silent, the subject has what this
// proxy has counted by itself.
func (c *Stated) Operate(s *decide.Subject, _ string, _ int, _ uint32, now int64) (value int64, err error) {
	if c.nowNs = c.worker.host.Monotonic(); !s.Unlimited && c.isSilent(s) && c.checkLocal(s, now) == decide.Failed {
		return 0, local.ErrStore
	}
	return 0, nil
}
