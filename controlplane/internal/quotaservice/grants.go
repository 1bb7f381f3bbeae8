package quotaservice

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// returnable is a grant whose units may come back: what their return needs to know of it.
type returnable struct {
	definition *action.Definition
	shifted    []limit.Window
	storeKey   [16]byte
	counted    action.Counted
	units      uint32 // that may come back
	atNs       int64  // by the service's clock
}

// grants are a stream's newest, by number.
type grants struct {
	list   []returnable // the oldest first
	number uint32       // of the newest
}

// rememberNs is how long a grant is remembered for returns: a lease and the time
// after which it counts as idle, and some.
const rememberNs = 30 * second

// add remembers a grant, and forgets those that are too old or too many. It returns its number.
func (gs *grants) add(g returnable) (number uint32) {
	for len(gs.list) >= quota.MaxReturnable || len(gs.list) > 0 && g.atNs-gs.list[0].atNs > rememberNs {
		gs.list[0] = returnable{}
		gs.list = gs.list[1:]
	}
	gs.list = append(gs.list, g)
	gs.number++
	return gs.number
}

// takeReturned takes a returned grant, and how many of its units go back: at most what it gave, once.
// What a return leaves has been spent, so a second one has nothing to give.
func (gs *grants) takeReturned(r quota.Return) (g *returnable, units uint32) {
	age := gs.number - r.Grant // newest = 0
	if r.Grant == 0 || r.Grant > gs.number || int64(age) >= int64(len(gs.list)) {
		return nil, 0
	}
	g = &gs.list[len(gs.list)-1-int(age)]
	units = min(r.Units, g.units)
	g.units = 0
	return g, units
}

// leased is how many units leases have that have not ended at localNs.
func (gs *grants) leased(localNs int64) (units uint64) {
	for i := range gs.list {
		g := &gs.list[i]
		if g.atNs+g.counted.SpendByNs-g.counted.AtNs > localNs {
			units += uint64(g.units)
		}
	}
	return units
}
