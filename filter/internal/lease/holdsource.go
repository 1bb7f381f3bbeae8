package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// HoldSource is the source of units of a rule of scope cluster that holds them until answers
// are known: each request asks for its cost, and nothing is leased. What the worker holds of
// a key is its account, and the service gets reports of it: see package account.
//
// If another rule denies the request after Take, Refund undoes Take, and GiveBackUnused gives the units back.
//
// For example, the first request of a key with a limit of 3 slots, and what the key's account has after each step:
//
//	step                         given  held
//	Client.Wait     askPart          0     0  Check has found it Pending. Open opens the account
//	Client.Flush    BeginReport      0     0  report 1 says: held 0. The ask asks for 1
//	Client.Receive  EndReport        1     0  the service has granted 1, and counts it as held: so has the Subject's
//	                                          allotment
//	Check, Take     HoldGiven        0     1  the request is decided again, and goes on. The service knows what is held
//	Settle          Settle, Enlist   0     0  the answer is known. The account is listed for a report
//	Client.Flush    BeginReport      0     0  report 2 says: held 0. The service has 3 free slots again
//
// Its other methods are clusterRule's.
type HoldSource struct {
	clusterRule
	share []limit.Window // memory for shareOfHold
}

// Check finds out what decides about the request: see clusterRule.
func (src *HoldSource) Check(s *decide.Subject, wallNs int64) decide.Finding {
	found := src.check(s, wallNs)
	found.Known = isKnown(s)
	return found
}

func (src *HoldSource) check(s *decide.Subject, wallNs int64) decide.Finding {
	c := src.begin(s, wallNs)
	if c.Allotment.Decides(s.Cost, c.MonotonicNs) {
		return byAllotment(s)
	}
	if src.isFree(s) { // so the rule has no block, and no account need be looked up
		return atNoCost(s)
	}
	acc := src.findAccount(s)
	if src.blocks && acc != nil {
		if block, blocked := acc.RecallBlock(c.MonotonicNs); blocked {
			c.Standings = block.Standings
			return deniedFor(s, block.WaitNs(c.MonotonicNs), decide.Blocked)
		}
	}
	if why, unavailable := src.unavailable(s, acc); unavailable {
		return src.alone(s, why)
	}
	return src.leaveToService(s)
}

// Recheck is Check.
func (src *HoldSource) Recheck(s *decide.Subject, wallNs int64) decide.Finding {
	return src.Check(s, wallNs)
}

// unavailable reports whether the service cannot be asked for the subject's key, whose account is acc, and why: Silent
// if it answers nothing, or nothing about this key, or if the worker cannot report one key more; Starting if it grants
// nothing yet.
func (src *HoldSource) unavailable(s *decide.Subject, acc *account.Account) (why decide.Found, unavailable bool) {
	switch {
	case src.worker.Service.Silent, acc == nil && src.worker.Book.IsFull():
		return decide.Silent, true
	case acc == nil:
		return 0, false
	case acc.StartingUntilNs > s.Cluster.MonotonicNs:
		return decide.Starting, true
	case acc.SilentUntilNs > s.Cluster.MonotonicNs:
		return decide.Silent, true
	}
	return 0, false
}

// findAccount is the account of the subject's key, nil if there is none.
func (src *HoldSource) findAccount(s *decide.Subject) *account.Account {
	if src.worker.Book.IsEmpty() {
		return nil
	}
	return src.worker.Book.Find(src.ownDefinition(), src.quotaKey(s))
}

// openAccount is the account of the subject's key, a new one if there is none.
func (src *HoldSource) openAccount(s *decide.Subject) *account.Account {
	return src.worker.Book.Open(src.definition(s), src.quotaKey(s), s.Cluster.MonotonicNs)
}

// askPart asks for the subject's cost. It opens the key's account if there is none.
func (src *HoldSource) askPart(s *decide.Subject) Part {
	acc := src.openAccount(s)
	s.Cluster.Account = acc
	return holdPart(s, acc)
}

// giveBack has the account's next report leave the units out.
func (src *HoldSource) giveBack(s *decide.Subject) { accountOf(s).DropGiven(s.Cluster.Allotment.Units) }

// Take holds the cost.
func (src *HoldSource) Take(s *decide.Subject) state.Status {
	switch s.Cluster.From {
	case cluster.Allotted:
		accountOf(s).HoldGiven(s.Cost)
		s.Cluster.Allotment.Units -= s.Cost
		s.Hold = state.Hold{Units: s.Cost}
		return state.OK
	case cluster.OwnShare:
		return src.takeShare(s)
	default:
		return state.Failed
	}
}

// accountOf is the account that has the subject's units, nil if there is none. Units that are Allotted have one: see
// askPart.
func accountOf(s *decide.Subject) *account.Account {
	acc, _ := s.Cluster.Account.(*account.Account)
	return acc
}

// takeShare holds the cost in this proxy's own table. It also does in the key's account, by which the service hears of
// it, unless there are too many accounts for one more.
func (src *HoldSource) takeShare(s *decide.Subject) state.Status {
	taken := src.local.Take(s)
	switch {
	case taken != state.OK:
	case src.worker.Book.IsFull() && src.findAccount(s) == nil:
		s.Cluster.Account = nil
	default:
		acc := src.openAccount(s)
		acc.Hold(s.Cost)
		s.Cluster.Account = acc
	}
	return taken
}

// Refund puts the units back to where they were taken from.
func (src *HoldSource) Refund(s *decide.Subject, wallNs int64) bool {
	switch s.Cluster.From {
	case cluster.Allotted:
		accountOf(s).UnholdGiven(s.Cost)
		s.Cluster.Allotment.Units += s.Cost
		return true
	case cluster.OwnShare:
		if acc := accountOf(s); acc != nil {
			acc.Unhold(s.Cost)
		}
		return src.local.Refund(s, wallNs)
	default:
		return false
	}
}

// Held is what all proxies hold of the key, as the service has said last.
func (src *HoldSource) Held(s *decide.Subject) uint32 {
	if s.Cluster.From == cluster.OwnShare {
		return src.local.Held(s)
	}
	standings := s.Cluster.Standings
	if len(standings) == 0 {
		return 0
	}
	return standings[len(standings)-1].Used // the last window is the limit.Concurrency
}

// Operate returns 0: nothing is leased. While the service is silent, the subject has what this proxy has counted by
// itself.
func (src *HoldSource) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, known bool, err error) {
	src.begin(s, wallNs)
	_, unavailable := src.unavailable(s, src.findAccount(s))
	if unavailable && !src.showShare(s) {
		return 0, false, local.ErrStore
	}
	return 0, s.Cluster.From == cluster.OwnShare, nil
}

// leaseOf is LeaseOf.
func (src *HoldSource) leaseOf(s *decide.Subject) *result.Lease {
	out := &result.Lease{}
	if _, unavailable := src.unavailable(s, src.findAccount(s)); unavailable {
		out.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return out
}

// A hold of a HoldSource lies in one place or in two:
//
//	account only  the service has granted the units
//	both          they were taken while the service was silent: this proxy's table has taken them, and the service
//	              hears of them later
//	table only    so they were, and the worker has too many accounts for one more
//
// Package hold draws what each place charges, and settles the account. Here is the table's part. The table counts by
// this proxy's share of the limits.

// shareOfHold is this proxy's share of the limits by which a hold counts. It is valid until the next call. If the
// number of proxies has changed since Check, it is the share by which the key's next check counts.
func (src *HoldSource) shareOfHold(h *hold.Hold) []limit.Window {
	src.share = src.shareOf(src.share, h.Windows)
	return src.share
}

// Settle ends what the request holds in this proxy's table, and charges its cost there.
func (src *HoldSource) Settle(h *hold.Hold, cost uint32, wallNs int64) hold.Settlement {
	if !h.TakenHere {
		return hold.CostCharged
	}
	return src.local.SettleBy(src.shareOfHold(h), h, cost, wallNs)
}

// Renew renews what lies in this proxy's table.
func (src *HoldSource) Renew(h *hold.Hold, at hold.Clocks) hold.Renewal {
	if !h.TakenHere || !src.local.IsDue(h, at) {
		return hold.NotDue
	}
	return src.local.RenewBy(src.shareOfHold(h), h, at)
}
