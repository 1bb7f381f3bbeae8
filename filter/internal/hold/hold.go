// Package hold has what an allowed request holds of a rule until its answer is known.
//
// Its invariant: what is held is charged once, when the hold is settled or when it lapses.
package hold

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Source is where the units of a rule come from that holds them.
type Source interface {
	// Settle ends a hold, and charges what the request really cost. It reports
	// whether the hold had lapsed before, and been charged.
	Settle(h *Hold, cost uint32, now int64) (lapsed, ok bool)
	// Renew keeps a hold from lapsing, because its request is still alive. A hold lasts for eight
	// parts, and Renew writes once in each: it returns NotDue until the next part begins, and
	// always in a table once the hold HasEnded. It returns Lapsed if all is charged.
	Renew(h *Hold, at Clocks) Renewal
}

// Rule is what a hold needs of its rule. Package decide has the rest.
type Rule struct {
	Policy  *policy.Rule
	Finder  policy.Subjects
	Metrics metrics.Set
	Holder  Source // nil unless the rule holds
}

// Hold is what a request holds of one rule. The caller keeps it:
//
//	Begin   the units are held, and the request goes on
//	Renew   again and again while the request is alive
//	Settle  ends it, always once: by the answer, or without one
//
// A hold lapses if nobody renews it in time, or once it HasEnded: its source charges what was held, and Settle only
// what it cost beyond.
type Hold struct {
	state.Hold
	Rule    *Rule
	Windows []limit.Window // with the limits that hold for the key
	Account any            // of the source, which reports the hold to the quota service; nil if it does not

	EndNs  int64 // the caller's: when max_hold ends it, by the monotonic clock; 0 = it may be renewed for ever
	lapsed bool  // it is charged already
}

// Begin counts the hold in Metrics.Holding until it is settled.
func (h *Hold) Begin() {
	m := &h.Rule.Metrics
	m.Holding.Streams++
	m.Holding.Units += int64(h.Units)
}

// Limits are those of the hold's key, whose bytes are not kept.
func (h *Hold) Limits() state.Key { return state.Key{Windows: h.Windows, OfRule: h.Rule.Finder.OfAll} }

// Renewal is what became of a hold that a source was to renew.
type Renewal uint8

// The renewals.
const (
	NotDue  Renewal = iota
	Renewed         // it lasts as long again
	Lapsed          // it is charged
	Unknown         // a call into the proxy failed: it is to be tried again
)

// Clocks are the present by the three clocks that a renewal needs.
type Clocks struct {
	Now         int64 // since the epoch: windows are counted by it
	MonotonicNs int64 // that nobody sets: EndNs is of it
	HeldNs      int64 // by state.Tables.HeldNow: it says which eighth of a hold in this proxy's table has come
}

// Renew renews the hold if that is due, and counts what became of it.
func (h *Hold) Renew(at Clocks) {
	if h.lapsed {
		return
	}
	m := &h.Rule.Metrics
	switch h.Rule.Holder.Renew(h, at) {
	case Renewed:
		m.HoldsRenewed++
	case Lapsed:
		m.HoldsLost++
		h.lapsed = true
	case Unknown:
		m.Errors++
	default:
	}
}

// HasEnded reports whether max_hold has ended the hold by then.
func (h *Hold) HasEnded(monotonicNs int64) bool { return h.EndNs > 0 && monotonicNs >= h.EndNs }

// Settle ends the hold and charges the cost.
func (h *Hold) Settle(cost uint32, by metrics.By, now int64) {
	r, m := h.Rule, &h.Rule.Metrics
	m.Holding.Streams--
	m.Holding.Units -= int64(h.Units)
	lapsed, ok := r.Holder.Settle(h, cost, now)
	switch {
	case !ok:
		m.Errors++
	case lapsed && !h.lapsed:
		m.HoldsLost++
		h.lapsed = true
	}
	if m.Priced != nil && ok {
		charged := cost
		if h.lapsed {
			charged = max(cost, h.Units)
		}
		m.Priced.Units += uint64(charged)
	}
	if r.Policy.Settle != nil {
		m.Settled[by]++
		m.ChargedOver += uint64(cost - min(cost, h.Units))
	}
}

// HasLapsed reports whether what the request held is charged already.
func (h *Hold) HasLapsed() bool { return h.lapsed }
