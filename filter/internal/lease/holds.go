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
func (src *HoldSource) part(s *decide.Subject, cost uint32) Part {
	d := src.definition(s)
	acc := src.worker.accounts.open(d, src.keyOf(s), src.worker.clock.Monotonic())
	return Part{definition: d, subject: s, source: src, account: acc, Wire: quota.Part{
		Definition: d.ID, Key: acc.key, Cost: cost, Waiting: cost, Shadow: s.Shadow,
	}}
}

func (src *HoldSource) keyOf(s *decide.Subject) [16]byte {
	return src.rule.Subjects.QuotaKey(&s.Subject)
}

// Check decides by the grant that the request has waited for.
func (src *HoldSource) Check(s *decide.Subject, wallNs int64) decide.Outcome {
	src.begin(s, wallNs)
	if g := &s.Quota.Grant; g.Decides(s.Cost, s.Quota.NowNs) {
		return src.checkGrant(s, g, wallNs)
	}
	if s.Cost == 0 {
		return forNothing(s)
	}
	next := src.cannotAsk(s)
	if next == decide.Pending {
		next = src.worker.tooFew(s)
	}
	if next == decide.Silent || next == decide.Starting {
		return src.alone(s, wallNs, next)
	}
	return next
}

// Recheck is Check.
func (src *HoldSource) Recheck(s *decide.Subject, wallNs int64) decide.Outcome {
	return src.Check(s, wallNs)
}

// checkGrant decides by the service's grant.
func (src *HoldSource) checkGrant(s *decide.Subject, g *decide.Grant, wallNs int64) decide.Outcome {
	s.Known = len(g.Standings) >= len(src.rule.Subjects.Windows)
	if !g.Denied {
		s.Quota.From = decide.OwnGrant
		return decide.HasRoom
	}
	s.PassNs = passNs(wallNs, g.WaitNs)
	if g.HeldBack {
		return decide.HeldBack
	}
	return decide.Denied
}

// cannotAsk says why the service cannot be asked for the subject's key: Silent if it answers
// nothing, or nothing about this key, Starting if it grants nothing yet. Otherwise it is Pending.
func (src *HoldSource) cannotAsk(s *decide.Subject) decide.Outcome {
	accs := &src.worker.accounts
	switch acc := src.account(s); {
	case src.worker.Silent, acc == nil && accs.areMany():
		return decide.Silent
	case acc == nil:
		return decide.Pending
	case acc.startNs > s.Quota.NowNs:
		return decide.Starting
	case acc.silentNs > s.Quota.NowNs:
		return decide.Silent
	}
	return decide.Pending
}

// account is the account of the subject's key, nil if there is none.
func (src *HoldSource) account(s *decide.Subject) *account {
	if len(src.worker.accounts.byName) == 0 {
		return nil
	}
	return src.worker.accounts.find(src.definition(s), src.keyOf(s))
}

// Take holds the cost.
func (src *HoldSource) Take(s *decide.Subject) decide.Outcome {
	switch s.Quota.From {
	case decide.OwnGrant:
		acc := s.Account.(*account)
		s.Quota.Grant.Units -= s.Cost
		acc.Given -= s.Cost
		acc.Held += s.Cost
		s.Hold = state.Hold{Units: s.Cost}
		return decide.Taken
	case decide.OwnShare:
		return src.takeShare(s)
	default:
		return decide.Failed
	}
}

// takeShare holds the cost in this proxy's own table, and reports it later, unless there are
// too many accounts for one more.
func (src *HoldSource) takeShare(s *decide.Subject) decide.Outcome {
	s.Account = nil
	taken := src.local.Take(s)
	if taken != decide.Taken || src.account(s) == nil && src.worker.accounts.areMany() {
		return taken
	}
	acc := src.part(s, 0).account
	acc.Held += s.Cost
	s.Account = acc
	src.worker.accounts.markDue(acc)
	return taken
}

// Refund puts the units back to where they were taken from.
func (src *HoldSource) Refund(s *decide.Subject, wallNs int64) bool {
	acc, reports := s.Account.(*account)
	switch s.Quota.From {
	case decide.OwnGrant:
		acc.Held -= s.Cost
		acc.Given += s.Cost
		s.Quota.Grant.Units += s.Cost
		return true
	case decide.OwnShare:
		if reports {
			acc.Held -= s.Cost
			src.worker.accounts.markDue(acc)
		}
		return src.local.Refund(s, wallNs)
	default:
		return false
	}
}

// Settle ends what the request holds, and charges its cost. What was held while the service was
// silent counts in this proxy's own table as well.
func (src *HoldSource) Settle(h *decide.Hold, cost uint32, wallNs int64) (lapsed, ok bool) {
	ok = true
	if h.InTable() {
		lapsed, ok = src.local.Settle(h, cost, wallNs)
	}
	acc, reports := h.Account.(*account)
	if !reports {
		return lapsed, ok
	}
	acc = src.worker.accounts.recall(acc)
	if units := h.Units; h.HasLapsed() { // they are charged already
		acc.Settle(0, cost-min(cost, units))
	} else {
		acc.Settle(units, cost)
	}
	src.worker.accounts.markDue(acc)
	return lapsed, ok
}

// Renew charges a hold that max_hold has ended. It waits holdNs more, as in a table: there a hold
// lapses holdNs after its last renewal, and max_hold only ends the renewals. Accounts are renewed by
// the client's tick.
func (src *HoldSource) Renew(h *decide.Hold, at decide.Clocks) decide.Renewal {
	ends := h.EndNs > 0
	if h.InTable() && (!ends || at.MonotonicNs < h.EndNs) {
		src.local.Renew(h, at)
	}
	acc, reports := h.Account.(*account)
	if !reports || !ends || at.MonotonicNs < h.EndNs+acc.holdNs() {
		return decide.NotDue
	}
	acc.Settle(h.Units, h.Units)
	src.worker.accounts.markDue(acc)
	return decide.Lapsed
}

// Held is what all proxies hold of the key, by the last grant.
func (src *HoldSource) Held(s *decide.Subject) uint32 {
	if s.Quota.From == decide.OwnShare {
		return src.local.Held(s)
	}
	g := &s.Quota.Grant
	if !g.Received || len(g.Standings) == 0 {
		return 0
	}
	return g.Standings[len(g.Standings)-1].Used
}

// Usage is how the key stands over all proxies, by the grant.
func (src *HoldSource) Usage(s *decide.Subject, window int) *limit.Usage {
	if s.Quota.From == decide.OwnShare {
		return src.local.Usage(s, window)
	}
	w, g := &s.Limits.Windows[window], &s.Quota.Grant
	switch {
	case !g.Received || window >= len(g.Standings):
		src.usage = limit.Usage{Log: src.usage.Log[:0]}
	case w.Algorithm == limit.Concurrency:
		src.usage = limit.Usage{Used: g.Standings[window].Used}
	default:
		st := &g.Standings[window]
		src.usage = w.Standing(s.Record.Now, st.Used, max(st.ResetNs-s.Quota.NowNs, 0), src.usage.Log)
	}
	return &src.usage
}

// Operate returns 0: nothing is leased. While the service is silent, the subject has what this
// proxy has counted by itself.
func (src *HoldSource) Operate(s *decide.Subject, _ string, _ int, _ uint32, wallNs int64) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	s.Quota.From, s.Quota.NowNs = decide.Nowhere, src.worker.clock.Monotonic()
	if src.cannotAsk(s) != decide.Pending && src.local != nil && src.checkShare(s, wallNs) == decide.Failed {
		return 0, local.ErrStore
	}
	return 0, nil
}

func (src *HoldSource) lease(s *decide.Subject) *result.Lease {
	known := &result.Lease{}
	if src.cannotAsk(s) != decide.Pending {
		known.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return known
}
