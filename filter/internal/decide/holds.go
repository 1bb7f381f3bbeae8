package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
)

// BeginHolds appends what the request holds: each hold must end by one call of Settle.
func (v *Verdict) BeginHolds(holds []hold.Hold) []hold.Hold {
	for _, s := range v.Subjects {
		if s.Outcome == Taken && s.Rule.HoldSource != nil {
			holds = append(holds, hold.Hold{
				Hold: s.Hold, Rule: &s.Rule.holds, Windows: s.KeepWindows(), Account: s.Account,
			})
			holds[len(holds)-1].Begin()
		}
	}
	return holds
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
