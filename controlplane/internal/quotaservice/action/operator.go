package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// AllWindows makes Inc and Set act on every window.
const AllWindows = -1

// Inspect finds out whether units are left.
type Inspect struct{ Units uint32 }

func (i *Inspect) carryOut(_ *Terms, _ *record.Record, v balance.View, out *Outcome) (changed bool) {
	out.judge(&v, i.Units)
	return false
}

// Inc counts units in a window, or in all, whatever is left.
type Inc struct {
	Units  uint32
	Window int // index in the definition, or AllWindows
}

func (i *Inc) carryOut(_ *Terms, _ *record.Record, v balance.View, _ *Outcome) (changed bool) {
	add(&v, i.Window, i.Units)
	return true
}

// Set makes a window, or all, count so many units and nothing else. A block goes on.
type Set struct {
	Units  uint32
	Window int // index in the definition, or AllWindows
}

func (t *Set) carryOut(_ *Terms, r *record.Record, v balance.View, _ *Outcome) (changed bool) {
	for i := range v.Windows {
		isIt := t.Window == AllWindows || t.Window == i
		if isIt && v.Windows[i].Algorithm != limit.Block {
			v.Clear(i)
		}
	}
	add(&v, t.Window, t.Units)
	r.Renew() // a return does not know which window was set since its grant
	return true
}

// add counts n units in the window, or in all.
func add(v *balance.View, window int, n uint32) {
	if window == AllWindows {
		v.Add(n)
	} else {
		v.AddIn(window, n)
	}
}

// Reset forgets the key: beforehand, because the windows of other definitions may leave those of its own no room.
type Reset struct{}

func (Reset) carryOutBefore(r *record.Record, out *Outcome) { out.HadUsage = r.Forget() }

func (Reset) carryOut(*Terms, *record.Record, balance.View, *Outcome) (changed bool) {
	return true
}
