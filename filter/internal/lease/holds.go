package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// HoldSource is the source of units of a rule of scope cluster that holds them until answers
// are known: each request asks for its cost, and nothing is leased. What the worker holds of
// a key is its account (accounts.go), and the service gets reports of it.
//
// Check goes down this list to the first line that holds:
//
//	what holds                                         outcome                                             by
//	the request has waited, and its grant decides      HasRoom from OwnGrant, Denied, HeldBack or Blocked  byGrant
//	the worker knows that the key is blocked           Blocked                                             byGrant
//	cost 0, and the rule has no block                  Denied by a limit of 0, or HasRoom                  forNothing
//	the service is unavailable for the key             what OwnShare decides, Silent or Starting           alone
//	the wait was in vain                               what OwnShare decides, or Silent                    alone
//	too many requests wait, or the service took no     Contended
//	more asks
//	none of these: the service may have units          Pending: the request waits
//
// What a request of cost 2 does to the account of its key, if its answer costs 5 in the end:
//
//	                  Given  Held  charged
//	grant.give           +2
//	Take                 -2    +2
//	Settle                     -2       +5
//
// If another rule denies it after Take, Refund undoes Take, and Client.Done takes the 2 from Given.
type HoldSource struct{ clusterRule }

// Check finds out what decides about the request: see HoldSource.
func (src *HoldSource) Check(s *decide.Subject, wallNs int64) decide.Outcome {
	src.begin(s, wallNs)
	if s.Quota.Grant.Decides(s.Cost, s.Quota.NowNs) || src.recallBlock(s) {
		return src.byGrant(s, wallNs)
	}
	if src.asksNothing(s) {
		return forNothing(s)
	}
	why, unavailable := src.unavailable(s)
	switch {
	case unavailable:
		return src.alone(s, wallNs, why)
	case s.Quota.Wait == decide.TimedOut:
		return src.alone(s, wallNs, decide.Silent)
	case src.worker.mustNotWait(s):
		return decide.Contended
	default:
		return decide.Pending
	}
}

// Recheck is Check.
func (src *HoldSource) Recheck(s *decide.Subject, wallNs int64) decide.Outcome {
	return src.Check(s, wallNs)
}

// unavailable reports whether the service cannot be asked for the subject's key, and why: Silent if it
// answers nothing, or nothing about this key, or if the worker cannot report one key more; Starting
// if it grants nothing yet.
func (src *HoldSource) unavailable(s *decide.Subject) (why decide.Outcome, unavailable bool) {
	acc := src.account(s)
	switch {
	case src.worker.silent, acc == nil && src.worker.accounts.areMany():
		return decide.Silent, true
	case acc == nil:
		return 0, false
	case acc.startNs > s.Quota.NowNs:
		return decide.Starting, true
	case acc.silentNs > s.Quota.NowNs:
		return decide.Silent, true
	}
	return 0, false
}

// account is the account of the subject's key, nil if there is none.
func (src *HoldSource) account(s *decide.Subject) *account {
	if len(src.worker.accounts.byName) == 0 {
		return nil
	}
	return src.worker.accounts.find(src.definition(s), src.quotaKey(s))
}

// openAccount is the account of the subject's key, a new one if there is none.
func (src *HoldSource) openAccount(s *decide.Subject) *account {
	return src.worker.accounts.open(src.definition(s), src.quotaKey(s), src.worker.clock.Monotonic())
}

// askPart is what is asked for the subject's key. It opens the key's account if there is none.
func (src *HoldSource) askPart(s *decide.Subject, cost uint32) part {
	acc := src.openAccount(s)
	return part{definition: acc.definition, account: acc, Wire: quota.Part{
		Definition: acc.definition.ID, Key: acc.key, Cost: cost, Waiting: cost, Shadow: s.Shadow, NoBlock: s.BlocksNobody(),
	}}
}

// Take holds the cost.
func (src *HoldSource) Take(s *decide.Subject) state.Status {
	switch s.Quota.From {
	case decide.OwnGrant:
		acc := s.Account.(*account)
		s.Quota.Grant.Units -= s.Cost
		acc.Given -= s.Cost
		acc.Held += s.Cost
		s.Hold = state.Hold{Units: s.Cost}
		return state.OK
	case decide.OwnShare:
		return src.takeShare(s)
	default:
		return state.Failed
	}
}

// takeShare holds the cost in this proxy's own table, and reports it later, unless there are
// too many accounts for one more.
func (src *HoldSource) takeShare(s *decide.Subject) state.Status {
	s.Account = nil
	taken := src.local.Take(s)
	if taken != state.OK || src.account(s) == nil && src.worker.accounts.areMany() {
		return taken
	}
	acc := src.openAccount(s)
	acc.Held += s.Cost
	s.Account = acc
	src.worker.accounts.list(acc)
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
			src.worker.accounts.list(acc)
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
	src.worker.accounts.list(acc)
	return lapsed, ok
}

// Renew renews what lies in this proxy's table, and charges the account of a hold that max_hold has ended. It
// charges holdNs after that, as a table does, where a hold lapses holdNs after its last renewal. Until then the
// client's tick renews the account. What has lapsed in the table alone is NotDue: Settle takes a hold that
// HasLapsed to be charged in the account.
func (src *HoldSource) Renew(h *decide.Hold, at decide.Clocks) decide.Renewal {
	inTable := decide.NotDue
	if h.InTable() {
		inTable = src.local.Renew(h, at)
	}
	acc, reports := h.Account.(*account)
	switch {
	case !reports:
		return inTable
	case h.HasEnded(at.MonotonicNs - acc.holdNs()):
		acc.Settle(h.Units, h.Units)
		src.worker.accounts.list(acc)
		return decide.Lapsed
	case inTable == decide.Lapsed:
		return decide.NotDue
	}
	return inTable
}

// Held is what all proxies hold of the key, by the grant.
func (src *HoldSource) Held(s *decide.Subject) uint32 {
	if s.Quota.From == decide.OwnShare {
		return src.local.Held(s)
	}
	standings := s.Quota.Standings
	if len(standings) == 0 {
		return 0
	}
	return standings[len(standings)-1].Used // the last window is the limit.Concurrency
}

// Usage is how the key stands over all proxies, by the grant.
func (src *HoldSource) Usage(s *decide.Subject, window int) *limit.Usage {
	if s.Quota.From == decide.OwnShare {
		return src.local.Usage(s, window)
	}
	w, standings := &s.Limits.Windows[window], s.Quota.Standings
	switch {
	case window >= len(standings):
		src.usage = limit.Usage{Log: src.usage.Log[:0]}
	case w.Algorithm == limit.Concurrency:
		src.usage = limit.Usage{Used: standings[window].Used}
	default:
		st := &standings[window]
		src.usage = w.Standing(s.Record.Now, st.Used, max(st.ResetNs-s.Quota.NowNs, 0), src.usage.Log)
	}
	return &src.usage
}
