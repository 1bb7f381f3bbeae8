package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
)

// Charge counts units, whatever is left. No units = only look.
type Charge struct{ Units uint32 }

// carryOut lets no bucket or sliding window count more of one call than AddClaimed does, so that a wrong number
// does not close it for long. A fixed window ends anyway.
func (c *Charge) carryOut(_ *Terms, _ *record.Record, v balance.View, out *Outcome) (changed bool) {
	if c.Units == 0 {
		out.look(&v)
		return false
	}
	out.judge(&v, c.Units)
	for i := range v.Windows {
		if v.Windows[i].IsFixed() {
			v.AddIn(i, c.Units)
		} else {
			v.AddClaimedIn(i, c.Units)
		}
	}
	return true
}

// look finds out whether a window is over its limit, or one that cannot be has nothing left.
func (out *Outcome) look(v *balance.View) {
	for i := range v.Windows {
		isOver := v.LeftIn(i) == 0
		if w := &v.Windows[i]; w.IsFixed() {
			isOver = isOver && v.Standing(i).Used > w.Limit
		}
		if isOver {
			out.Denied, out.WaitNs = true, v.WaitNs(1)
		}
	}
}
