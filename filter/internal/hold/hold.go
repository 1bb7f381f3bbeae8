// Package hold has what an allowed request holds of a rule until its answer is known.
//
// Its invariant: each place that has the units charges them once, when the hold is settled or when it lapses there. A
// rule that one proxy counts has one place, a table of this proxy. One of scope cluster has two, which count apart: its
// hold is in a table, in an account of the worker, or in both (see lease/holdsource.go).
//
//	place    the hold                   who renews the units          what Settle charges there
//	table    runs                       Renew, each HoldNs/8          the cost
//	         is after EndNs             nobody                        the cost
//	         was not renewed for        nobody: the table charges     what the cost is beyond the units
//	         HoldNs: it has lapsed      them by itself
//	         is gone, for example       nobody: they are not charged  the cost
//	         because of a reset
//	         was charged at once: its   nobody                        what the cost is beyond the units
//	         page holds nothing
//	account  runs                       the worker's reports          the cost
//	         is after EndNs             the worker's reports          the cost
//	         is after EndNs + HoldNs:   nobody: Renew charges them    what the cost is beyond the units
//	         it has lapsed
//
// HoldNs is the policy's `hold`, and EndNs is when its `max_hold` is over. This package knows the account. The table is
// known to its Source.
package hold

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Hold is what a request holds of one rule. Its state.Hold is what a table needs, the other fields are what the stream
// needs. Its methods:
//
//	Begin   counts it as running: Take has held the units
//	Renew   again and again while the request is alive
//	Settle  ends it, always once: by the answer, or without one
//
// Their caller is host/holds.go: a tick renews, and the end of a stream settles by the cost that package settle finds,
// or lets the hold linger and settles later.
//
// The stream of the request owns it. A copy takes its place: only one of them may be renewed and settled.
type Hold struct {
	// decide.Verdict.BeginHolds.
	state.Hold
	Rule    *Rule
	Windows []limit.Window // with the limits that hold for the key, whole also if this proxy's share has decided
	Account Account        // nil if the hold is in no account

	// The caller, after BeginHolds.
	EndNs int64 // when max_hold ends it, by the monotonic clock; 0 = it may be renewed for ever

	// Renew.
	lost Renewal // Lapsed or Gone, once Renew has found that; else NotDue

	// TakenHere, by BeginHolds too, says that a table of this proxy has taken the units: it holds them, or has charged
	// them at once. Else the hold is in an account alone. It lies beside lost, where it takes no memory.
	TakenHere bool
}

// Rule is what all holds of one rule have in common: thousands of streams may each have a Hold.
type Rule struct {
	Policy  *policy.Rule
	Metrics *metrics.Set
	Source  Source
}

// Begin counts the hold in Metrics.Holding until it is settled.
func (h *Hold) Begin() {
	h.Rule.Metrics.Holding.Streams++
	h.Rule.Metrics.Holding.Units += int64(h.Units)
}

// Renew renews the hold if that is due, and counts what became of it. A hold is lost when its account has charged it.
// If it has none, it is lost when the table has lost it.
func (h *Hold) Renew(at Clocks) {
	if h.isLost() {
		return
	}
	if acc := h.Account; acc != nil && h.HasEnded(at.MonotonicNs-acc.HoldNs()) {
		acc.Lapse(h.Units)
		h.lose(Lapsed)
		return
	}
	switch became := h.Rule.Source.Renew(h, at); became {
	case Renewed:
		h.Rule.Metrics.HoldsRenewed++
	case Lapsed, Gone:
		if h.Account == nil { // else the account has the units still. The next tick asks the table again
			h.lose(became)
		}
	case Unknown:
		h.Rule.Metrics.Errors++
	case NotDue:
	}
}

// lose ends the renewals of a hold that is lost.
func (h *Hold) lose(how Renewal) {
	h.lost = how
	h.Rule.Metrics.HoldsLost++
}

// Settle ends the hold and charges the cost, in each place as the package's table says.
func (h *Hold) Settle(cost uint32, by metrics.By, now int64) {
	m := h.Rule.Metrics
	m.Holding.Streams--
	m.Holding.Units -= int64(h.Units)
	if h.Rule.Policy.Settle != nil { // how the cost became known counts also if it then cannot be charged
		m.SettledBy[by]++
	}
	inTable := h.Rule.Source.Settle(h, cost, now)
	beyond := cost - min(cost, h.Units)
	h.settleAccount(cost, beyond)
	h.noteSettled(inTable, cost, beyond)
}

// settleAccount is Settle in the account, if the hold is in one. beyond is what the cost is beyond the units.
func (h *Hold) settleAccount(cost, beyond uint32) {
	switch {
	case h.Account == nil:
	case h.HasLapsed(): // Renew has charged the units
		h.Account.SettleLapsed(beyond)
	default:
		h.Account.Settle(h.Units, cost)
	}
}

// noteSettled counts what Settle has charged:
//
//	Renew has found  Source.Settle returns  HoldsLost     ChargedUnits
//	no loss          CostCharged            stays         + the cost
//	no loss          ChargedAtOnce          stays         + the units, or the cost if that is more
//	no loss          HadLapsed              + 1 now       + the units, or the cost if that is more
//	Lapsed           any but Failed         + 1 by Renew  + the units, or the cost if that is more
//	Gone             CostCharged            + 1 by Renew  + the cost
//	any              Failed                 as before     stays: Errors + 1 instead
//
// A hold is lost once, also if both of its places have charged it. Unless Settle fails, ChargedOverHold counts what the
// cost is beyond the units.
func (h *Hold) noteSettled(inTable Settlement, cost, beyond uint32) {
	m := h.Rule.Metrics
	if inTable == Failed {
		m.Errors++
		return
	}
	if inTable == HadLapsed && !h.isLost() {
		m.HoldsLost++
	}
	if h.Rule.Policy.Settle != nil {
		m.ChargedOverHold += uint64(beyond)
	}
	if m.Priced == nil {
		return
	}
	if inTable != CostCharged || h.HasLapsed() { // the units were charged before
		cost = h.Units + beyond
	}
	m.Priced.ChargedUnits += uint64(cost)
}

// HasEnded reports whether max_hold has ended the hold by then.
func (h *Hold) HasEnded(monotonicNs int64) bool { return h.EndNs > 0 && monotonicNs >= h.EndNs }

func (h *Hold) isLost() bool { return h.lost != NotDue }

// HasLapsed reports whether Renew has found the hold Lapsed, and its units charged.
func (h *Hold) HasLapsed() bool { return h.lost == Lapsed }

// Source is where a rule holds units in a table of this proxy. If the table has not taken them, there is nothing to do:
// the renewal of such a hold is NotDue, and its settlement CostCharged.
type Source interface {
	// Settle ends the hold in the table, and charges there by the package's table.
	Settle(h *Hold, cost uint32, now int64) Settlement
	// Renew keeps the hold from lapsing in the table, because its request is still alive.
	Renew(h *Hold, at Clocks) Renewal
}

// Settlement is how a table has settled a hold.
type Settlement uint8

// The settlements.
const (
	CostCharged   Settlement = iota // the hold ran, or was gone: its cost is charged
	HadLapsed                       // its units were charged when it lapsed, and now what the cost is beyond them
	ChargedAtOnce                   // its units were charged when they were taken, and now what the cost is beyond them
	Failed                          // a call into the proxy failed: nothing is charged
)

// Renewal is what became of a hold that a source was to renew.
type Renewal uint8

// The renewals.
const (
	NotDue  Renewal = iota // nothing was to be done yet
	Renewed                // it lasts as long again
	Lapsed                 // it has lapsed, and is charged
	Gone                   // it is held no more, and is not charged: the key was reset, or its page stopped holding
	Unknown                // a call into the proxy failed: it is to be tried again
)

// Clocks are the present by the three clocks that a renewal needs.
type Clocks struct {
	Now         int64          // since the epoch: windows are counted by it
	MonotonicNs int64          // that nobody sets: EndNs is of it
	HeldNs      state.HoldTime // by state.Tables.HoldClock: it says which eighth of a hold in a table has come
}

// Account is the account of a hold: there a worker counts what it holds of a key, and reports it to the quota service.
// It is an account.Account of package lease.
type Account interface {
	Settle(units, cost uint32)  // a request holds units no more, and is charged a cost
	Lapse(units uint32)         // the same at the cost of the units, because it has held them for too long
	SettleLapsed(beyond uint32) // once after Lapse: the request is charged what it costs beyond the units
	HoldNs() int64              // how long the service holds units of a worker that reports nothing
}
