package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Hold is what an allowed request holds of one rule until its answer is known.
type Hold struct {
	Rule    *Rule
	Receipt state.Hold
	Windows []limit.Window // with the limits that hold for the key
	Level   any            // of a source that states what is held: see Subject.Level
	EndNs   int64          // after which it is not renewed, by the monotonic clock; 0 = always
	lapsed  bool
}

// Lingering is a hold whose request was reset, while its upstream may still be at work.
type Lingering struct {
	Hold
	UntilNs int64 // when it is settled, by the monotonic clock
}

// Holding is what streams hold of one rule now.
type Holding = state.Holding

// Limits are those of the hold's key. Its bytes are not known any more.
func (h *Hold) Limits() state.Key {
	return state.Key{Windows: h.Windows, Rule: h.Rule.Subjects.OfAll}
}

// Renewal is what became of a hold that a source was to renew.
type Renewal uint8

// The renewals.
const (
	NotDue  Renewal = iota
	Renewed         // it lasts as long again
	Lapsed          // it is charged
	Unsaid          // a call into the proxy failed: it is to be tried again
)

// Hold returns what a request holds of the rule, to be settled. The limits are the rule's own.
func (r *Rule) Hold(receipt state.Hold) Hold {
	r.Holding.Streams++
	r.Holding.Units += int64(receipt.Units)
	return Hold{Rule: r, Receipt: receipt, Windows: r.Subjects.Windows}
}

// AppendHolds appends what the request holds, each to be settled.
func (v *Verdict) AppendHolds(holds []Hold) []Hold {
	for _, s := range v.Subjects {
		if s.Outcome == Taken && s.Rule.Policy.Holds() {
			h := s.Rule.Hold(s.Held)
			h.Level = s.Level
			h.Windows = s.KeepWindows()
			holds = append(holds, h)
		}
	}
	return holds
}

// By says what a settlement was made of.
type By uint8

// What settlements are made of.
const (
	ByAnswer   By = iota // the answer said what it cost
	ByEstimate           // a guess
	ByCost               // the cost that was held
	ByNone               // it cost nothing
)

var bys = [...]string{"answer", "estimate", "cost", "none"}

func (b By) String() string { return bys[b] }

// Settle ends the hold, and counts what was made of it.
func (h *Hold) Settle(cost uint32, by By, now int64) {
	m := &h.Rule.Metrics
	h.Rule.Holding.Streams--
	h.Rule.Holding.Units -= int64(h.Receipt.Units)
	lapsed, ok := h.Rule.Source.Settle(h, cost, now)
	switch {
	case !ok:
		m.Errors++
	case lapsed && !h.lapsed:
		m.HoldsLost++
	}
	if h.Rule.Policy.Settle != nil {
		m.Settled[by]++
		m.ChargedOver += uint64(cost - min(cost, h.Receipt.Units))
	}
}

// Release ends what the verdict's subjects hold at once: none of them has an answer that is
// worth waiting for. Each is charged its cost.
func (v *Verdict) Release() {
	for _, h := range v.AppendHolds(nil) {
		cost := h.Receipt.Units
		if h.Rule.Policy.Concurrency() {
			cost = 0
		}
		h.Settle(cost, ByCost, v.Now)
	}
}

// HasLapsed reports whether what the request held is charged already.
func (h *Hold) HasLapsed() bool { return h.lapsed }

// Renew renews the hold where that is due, by the holds' clock.
func (h *Hold) Renew(now, monotonicNs, heldNs int64) {
	if h.lapsed || h.Level == nil && h.EndNs > 0 && monotonicNs >= h.EndNs {
		return
	}
	m := &h.Rule.Metrics
	switch h.Rule.Source.Renew(h, now, heldNs) {
	case Renewed:
		m.HoldsRenewed++
	case Lapsed:
		m.HoldsLost++
		h.lapsed = true
	case Unsaid:
		m.Errors++
	default:
	}
}
