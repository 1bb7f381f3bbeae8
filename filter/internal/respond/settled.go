package respond

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// Settled is one hold of a request as it was settled.
type Settled struct {
	Hold *decide.Hold
	Cost uint32
	By   decide.By
}

// AppendSettled appends what a request held and was charged, each an answer.Settled.
func AppendSettled(b []byte, list []Settled) []byte {
	settled := make([]answer.Settled, len(list))
	for i, s := range list {
		settled[i] = answer.Settled{
			Rule: s.Hold.Rule.Policy.Name, Held: s.Hold.Receipt.Units, Cost: s.Cost, By: s.By.String(),
		}
	}
	return answer.AppendSettled(b, settled)
}
