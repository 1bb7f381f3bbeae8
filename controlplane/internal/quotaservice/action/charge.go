package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Charge counts units, whatever is left. No units = only look.
type Charge struct{ Units uint32 }

// carryOut lets no bucket or sliding window count more of one call than CountClaimed does, so that a wrong number
// does not close it for long. A fixed window ends anyway.
func (c *Charge) carryOut(o *Operation, _ *record.Record, s quota.State) (changed bool) {
	if c.Units == 0 {
		o.look(&s)
		return false
	}
	o.judge(&s, c.Units)
	for i := range s.Windows {
		if s.Windows[i].IsFixed() {
			add(&s, i, c.Units)
			continue
		}
		one := s.Some(i, i+1)
		one.CountClaimed(c.Units)
	}
	return true
}

// look finds out whether a window is over its limit, or one that cannot be has nothing left.
func (o *Operation) look(s *quota.State) {
	for i := range s.Windows {
		w, of := &s.Windows[i], s.Some(i, i+1)
		isOver := of.Left(quota.Unleased) == 0
		if w.IsFixed() {
			isOver = isOver && s.StandingOf(i).Used > w.Limit
		}
		if isOver {
			o.Denied, o.WaitNs = true, s.WaitNs(1)
		}
	}
}
