package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
)

// A hold lies in its key's account, and if it was taken while the service was silent, in this proxy's own table too; or
// there alone, if the worker has too many accounts. Each place charges it once. What Renew does, in the order of time:
//
//	it lies in    until EndNs           until EndNs + HoldNs  from then on                    a second charge is
//	                                                                                          stopped by
//	account only  NotDue                NotDue                Lapsed: the account is charged  hold.Hold
//	table only    Renewed, each eighth  NotDue                NotDue: the table charges it    the table
//	both          Renewed, each eighth  NotDue                Lapsed: the account is charged  each of its own place
//
// max_hold ends the hold at EndNs. A hold that has lapsed somewhere is charged its units there, and Settle charges only
// what its request costs beyond them:
//
//	hold.Hold  sets its field lapsed when Renew returns Lapsed, and never calls Renew again. HasLapsed tells Settle
//	the table  has the hold no more: its own Settle finds that out, and returns lapsed
//
// The account waits for HoldNs, because the table's hold too lapses so long after its last renewal. Until then, package
// account renews what the account holds. If a worker stands still, the table's hold may lapse before EndNs. Renew then
// says Lapsed only of one without an account: the hold knows one lapse, that of the account if it has one.

// Settle ends what the request holds, and charges its cost.
func (src *HoldSource) Settle(h *hold.Hold, cost uint32, wallNs int64) (lapsed, ok bool) {
	ok = true
	if h.InTable() {
		lapsed, ok = src.local.Settle(h, cost, wallNs)
	}
	acc, hasAccount := h.Account.(*account.Account)
	if !hasAccount {
		return lapsed, ok
	}
	units := h.Units
	if h.HasLapsed() { // they are charged already
		units, cost = 0, cost-min(cost, units)
	}
	acc.Settle(units, cost)
	return lapsed, ok
}

// Renew renews what lies in this proxy's table, and charges the account of a hold that has lapsed.
func (src *HoldSource) Renew(h *hold.Hold, at hold.Clocks) hold.Renewal {
	inTable := hold.NotDue
	if h.InTable() {
		inTable = src.local.Renew(h, at)
	}
	acc, hasAccount := h.Account.(*account.Account)
	switch {
	case !hasAccount:
		return inTable
	case h.HasEnded(at.MonotonicNs - acc.HoldNs()):
		acc.Settle(h.Units, h.Units)
		return hold.Lapsed
	case inTable == hold.Lapsed:
		return hold.NotDue
	}
	return inTable
}
