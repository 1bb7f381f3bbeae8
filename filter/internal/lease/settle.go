package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
)

// A hold of a HoldSource lies in one place or in two:
//
//	account only  the service has granted the units
//	both          they were taken while the service was silent: this proxy's table counts them, the service hears later
//	table only    so they were, and the worker has too many accounts for one more
//
// What each place charges is drawn in package hold. The table counts by this proxy's share of the limits.

// Settle ends what the request holds, and charges its cost.
func (src *HoldSource) Settle(h *hold.Hold, cost uint32, wallNs int64) (lapsed, ok bool) {
	ok = true
	if h.InTable() {
		lapsed, ok = src.local.SettleBy(src.share(h.Windows), h, cost, wallNs)
	}
	acc, hasAccount := h.Account.(*account.Account)
	if !hasAccount {
		return lapsed, ok
	}
	units := h.Units
	if h.HasLapsed() { // Renew has charged them to the account
		units, cost = 0, cost-min(cost, units)
	}
	acc.Settle(units, cost)
	return lapsed, ok
}

// Renew renews what lies in this proxy's table, and charges the account of a hold that has lapsed.
func (src *HoldSource) Renew(h *hold.Hold, at hold.Clocks) hold.Renewal {
	inTable := hold.NotDue
	if h.InTable() && src.local.IsDue(h, at) {
		inTable = src.local.RenewBy(src.share(h.Windows), h, at)
	}
	acc, hasAccount := h.Account.(*account.Account)
	switch {
	case !hasAccount:
		return inTable
	case h.HasEnded(at.MonotonicNs - acc.HoldNs()):
		acc.Settle(h.Units, h.Units)
		return hold.Lapsed
	case inTable == hold.Lapsed, inTable == hold.Gone:
		return hold.NotDue // the account has the units still. The next tick asks the table again
	}
	return inTable
}
