package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Hold is what an allowed request holds of one rule until its answer is known. The caller keeps it:
//
//	BeginHolds  Source.Take has held the units, and the request goes on
//	Renew       again and again while the request is alive
//	Settle      ends it, always once: by the answer, or without one
//
// A hold lapses if nobody renews it in time, or once it HasEnded: its source charges what was held, and Settle only
// what it cost beyond.
type Hold struct {
	// BeginHolds.
	state.Hold
	Rule    *Rule
	Windows []limit.Window // with the limits that hold for the key
	Account any            // what Subject.Account was; nil if the quota service gets no reports of the hold

	// The caller, after BeginHolds.
	EndNs int64 // when max_hold ends it, by the monotonic clock; 0 = it may be renewed for ever

	// Renew, and Settle for the metrics alone.
	lapsed bool // it is charged already
}

// Limits are those of the hold's key, whose bytes are not kept.
func (h *Hold) Limits() state.Key {
	return state.Key{Windows: h.Windows, OfRule: h.Rule.Finder.OfAll}
}

// BeginHolds appends what the request holds, and counts it in Metrics.Holding until it is settled:
// each Hold must end by one call of Settle.
func (v *Verdict) BeginHolds(holds []Hold) []Hold {
	for _, s := range v.Subjects {
		if r := s.Rule; s.Outcome == Taken && r.HoldSource != nil {
			r.Metrics.Holding.Streams++
			r.Metrics.Holding.Units += int64(s.Hold.Units)
			holds = append(holds, Hold{Hold: s.Hold, Rule: r, Windows: s.KeepWindows(), Account: s.Account})
		}
	}
	return holds
}

// Settle ends the hold and charges the cost.
func (h *Hold) Settle(cost uint32, by metrics.By, now int64) {
	r, m := h.Rule, &h.Rule.Metrics
	m.Holding.Streams--
	m.Holding.Units -= int64(h.Units)
	lapsed, ok := r.HoldSource.Settle(h, cost, now)
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

// Release settles at once what the verdict's subjects hold: nobody waits for an answer. Each
// is charged its cost.
func (v *Verdict) Release() {
	for _, h := range v.BeginHolds(nil) {
		cost := h.Units
		if h.Rule.Policy.Concurrency() {
			cost = 0
		}
		h.Settle(cost, metrics.ByCost, v.Now)
	}
}

// HasLapsed reports whether what the request held is charged already.
func (h *Hold) HasLapsed() bool { return h.lapsed }

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

// HasEnded reports whether max_hold has ended the hold by then.
func (h *Hold) HasEnded(monotonicNs int64) bool { return h.EndNs > 0 && monotonicNs >= h.EndNs }

// Renew renews the hold if that is due, and counts what became of it.
func (h *Hold) Renew(at Clocks) {
	if h.lapsed {
		return
	}
	m := &h.Rule.Metrics
	switch h.Rule.HoldSource.Renew(h, at) {
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
