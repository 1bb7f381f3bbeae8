package quotaservice

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// answer answers the ask, unless its stream has closed.
func (a *begunAsk) answer() {
	w := a.worker
	w.open--
	a.measure()
	if !w.closed {
		w.send(&quota.AskResult{ID: a.id, Outcome: a.result, Grants: a.grants()}, a.size)
	}
	w.core.endDrain()
}

// grants are what the parts got, none if that is not said of each. They are in memory that the next answer uses again.
func (a *begunAsk) grants() []quota.Grant {
	if a.result == quota.Unknown || a.result == quota.Busy {
		return nil
	}
	c := a.worker.core
	c.grantBuffer = c.grantBuffer[:0]
	for i := range a.parts {
		c.grantBuffer = append(c.grantBuffer, a.grant(&a.parts[i]))
	}
	return c.grantBuffer
}

// measure counts the answer.
func (a *begunAsk) measure() {
	c := a.worker.core
	became := a.result
	isStarting := func(p askPart) bool { return errors.Is(p.first.Outcome.Err, action.ErrStarting) }
	if became == quota.Unavailable && slices.ContainsFunc(a.parts, isStarting) {
		became = unavailableStarting
	}
	c.metrics.countAnswer(became, c.clock.NowNs()-a.askedNs)
	for i := range a.parts { // lost is what an undo could not uncount; a later report corrects holds
		p := &a.parts[i]
		if p.undone != nil && p.undone.Terms.HoldLimit == nil {
			c.metrics.unitsLost.Add(uint64(p.first.Outcome.Taken.Units - p.undone.Outcome.Uncounted))
		}
	}
}

// grant is what one part got, and how its key stands when the ask is answered.
func (a *begunAsk) grant(part *askPart) quota.Grant {
	if part.failed() {
		return failedGrant(&part.first)
	}
	out, isDenied := &part.last().Outcome, part.denied()
	got := quota.Grant{
		Denied: isDenied, WaitNs: out.WaitNs, HeldBack: out.HeldBack, Blocked: isDenied && out.Blocked,
		Noted: out.Noted && out.Err == nil, Windows: a.standings(part),
	}
	if a.result == quota.Granted {
		a.handOver(&got, &part.first)
	}
	return got
}

// last is the operation whose outcome says how the key stands when the ask is answered: the kept denial, the undo, or
// the hit if nothing has followed.
func (p *askPart) last() *keyOperation {
	switch {
	case p.kept != nil:
		return p.kept
	case p.undone != nil:
		return p.undone
	}
	return &p.first
}

// standings are those of the part's key after its last operation. A denied part has those after the last undo of
// another part of its key: it was denied with count units which nobody got.
//
// An example: two rules ask for the same key, of which 5 units are left, for 2 and for 4. The first
// part gets its 2, so the second one is denied, when 3 are left. The 2 are undone, so both parts are
// answered that 5 are left.
func (a *begunAsk) standings(part *askPart) []quota.Standing {
	own := part.last()
	if !part.denied() {
		return own.Outcome.Standings
	}
	for i := range slices.Backward(a.parts) {
		o := a.parts[i].undone
		isUndone := o != nil && o.Outcome.Err == nil
		if isUndone && o.storeKey == own.storeKey && slices.Equal(o.Shifted, own.Shifted) {
			return o.Outcome.Standings
		}
	}
	return own.Outcome.Standings
}

// handOver grants what the hit of a granted ask has taken.
func (a *begunAsk) handOver(got *quota.Grant, o *keyOperation) {
	taken := &o.Outcome.Taken
	switch {
	case taken.Units > 0:
		got.Units, got.Leased = taken.Units, taken.Leased
		got.ValidNs = taken.ValidNs
		if o.Terms.HoldLimit == nil {
			got.Number = a.worker.remember(o)
		}
		a.worker.core.metrics.unitsGranted.Add(uint64(got.Units))
	case o.Terms.HasBlock: // a request that costs nothing has asked whether the key is blocked
		got.ValidNs = taken.ValidNs
	}
}

// failedGrant is for a key that could not be decided. Denied is for proxies that do not know
// Failed.
func failedGrant(o *keyOperation) quota.Grant {
	p := quota.Grant{Failed: true, Denied: true, WaitNs: second}
	if errors.Is(o.Outcome.Err, action.ErrStarting) {
		p.Starting, p.Noted = true, true
		p.WaitNs = o.Outcome.WaitNs
	}
	return p
}

// returnable is a grant whose units may come back: what their return needs to know of it.
type returnable struct {
	terms    *action.Terms
	shifted  []limit.Window
	storeKey [16]byte
	counted  action.Counted
	units    uint32 // that may come back
	atNs     int64  // by the service's clock
}

// returnables are a stream's newest grants, by number.
type returnables struct {
	list   []returnable // the oldest first
	number uint32       // of the newest
}

// rememberNs is how long a grant is remembered for returns: a lease and the time
// after which it counts as idle, and some.
const rememberNs = 30 * second

// add remembers a grant, and forgets those that are too old or too many. It returns its number.
func (rs *returnables) add(g returnable) (number uint32) {
	for len(rs.list) >= quota.MaxReturnable || len(rs.list) > 0 && g.atNs-rs.list[0].atNs > rememberNs {
		rs.list[0] = returnable{}
		rs.list = rs.list[1:]
	}
	rs.list = append(rs.list, g)
	rs.number++
	return rs.number
}

// takeReturned takes a returned grant, and how many of its units go back: at most what it gave, once.
// What a return leaves has been spent, so a second one has nothing to give.
func (rs *returnables) takeReturned(r quota.Return) (g *returnable, units uint32) {
	age := rs.number - r.Grant // newest = 0
	if r.Grant == 0 || r.Grant > rs.number || int64(age) >= int64(len(rs.list)) {
		return nil, 0
	}
	g = &rs.list[len(rs.list)-1-int(age)]
	units = min(r.Units, g.units)
	g.units = 0
	return g, units
}

// leased is how many units leases have that have not ended at localNs.
func (rs *returnables) leased(localNs int64) (units uint64) {
	for i := range rs.list {
		g := &rs.list[i]
		if g.atNs+g.counted.SpendByNs-g.counted.AtNs > localNs {
			units += uint64(g.units)
		}
	}
	return units
}
