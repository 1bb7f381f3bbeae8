package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Four types have a grant's units:
//
//	type             lives in               its Units
//	quota.Grant      the message            what the service has granted
//	Grant            Need.grant             what nobody has
//	decide.Grant     Subject.Quota.Grant    what its request may take
//	state.GrantLeft  the key's lease        what later requests may take
//
// The units of a rule that leases have three ways out: a request spends them, the key's lease keeps them for later
// requests, or the service gets them back.
//
//	    Give: to requests that waited         Source.Take
//	g.Units -----------> Subject.Quota.Grant -------------> spent
//	   |   ^                      |
//	   |   +---- reclaimLeased ---+
//	   |            what is not taken
//	   |
//	   | keepInLease, once the waiters have theirs: the rest
//	   | reclaimLeased, of the last of them: what they have left
//	   |
//	   +- putInLease ------> the key's lease, if later requests may spend it: a state.GrantLeft
//	   +- returnToService -> quota.Return, if not: see returns.go
//
// The service takes units of a grant back once. So what requests leave of a grant joins its other units, in the lease
// or here, and all of it goes back together.
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. keepInLease puts 18 into the lease.
// The client of the second request has left, so reclaimLeased puts its unit there too: the lease has 19
// units of grant 7. Later requests spend 4 of them, and then none comes for IdleNs. So CollectIdle takes
// the other 15 out of the lease, and they go back as quota.Return{Grant: 7, Units: 15}.

// Grant is the service's answer to one part of an ask.
type Grant struct {
	quota.Grant                       // as it came. Then Units change, and EndReport may set Failed
	Standings   []state.LeaseStanding // how the key's windows stand

	part  *Part
	trip  Trip
	endNs int64 // until when its units may be spent

	// Of a denial:
	blockNs      int64 // until when the key is blocked, 0 = it is not
	hasToldBlock bool  // a request was told that the ask has begun the block

	// Of a rule that leases:
	takers    int    // requests that have units of it and are not decided
	everGiven uint32 // units that requests have got, whatever they do with them: the key's rate counts them
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
}

// NewGrant reads the answer to a part of an ask, nil if the part has none.
func NewGrant(p *Part, answer *quota.Grant, trip Trip) *Grant {
	g := &Grant{part: p, trip: trip}
	if answer == nil {
		g.Failed = true
	} else {
		g.Grant = *answer
	}
	g.readTimes()
	g.readBlock()
	return g
}

// readTimes bounds what the service says of times by what can be, whatever a broken one answers. Ends and resets
// become instants. WaitNs stays a duration, from when the grant came on.
//
// The service counts its durations from an instant between SentNs and CameNs. A lease counts from SentNs, so it never
// ends later than at the service. Windows count from CameNs, so they never reset sooner. Both are the safe side.
func (g *Grant) readTimes() {
	mostNs := quota.MostWaitNs(g.part.Definition.Windows)
	g.endNs = g.trip.SentNs + min(max(g.ValidNs, 0), state.MaxLeaseNs)
	if g.WaitNs != limit.Never {
		g.WaitNs = min(max(g.WaitNs, 0), mostNs)
	}
	for _, st := range g.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		g.Standings = append(g.Standings, state.LeaseStanding{Used: st.Used, ResetNs: g.trip.CameNs + resetNs})
	}
}

// The steps of a grant are EndReport, Give, KeepRest, and reclaim for each taker. What a step does depends on the rule:
// of one that leases it is in keep.go, of one that holds mostly in package account.

// EndReport ends the report of the part's account. If the report was given up, the grant has Failed: it gives nothing.
func (g *Grant) EndReport() {
	if g.part.Holds() && !g.part.account.EndReport(g.part.reportNumber(), &g.Grant, g.trip.CameNs) {
		g.Failed = true
	}
}

// Give gives a request that has waited the units that it needs, if the grant has them, or the denial, if what was
// denied costs no more. Requests are given in the order in which they came.
func (g *Grant) Give(needs []Need) {
	if g.Failed {
		return
	}
	for i := range needs { // a request has one need of each definition
		n := &needs[i]
		if n.grant != nil || n.Part.Wire.Definition != g.part.Wire.Definition {
			continue
		}
		switch cost := n.Part.Wire.Cost; {
		case g.Denied && cost >= g.part.Wire.Cost:
			g.deny(n)
		case !g.Denied && g.Units >= cost && g.trip.CameNs < g.endNs:
			g.giveUnits(n, cost)
		}
	}
}

// giveUnits gives the request as many units as it needs.
func (g *Grant) giveUnits(n *Need, units uint32) {
	g.writeTo(n, units)
	g.Units -= units
	if g.part.Holds() {
		g.part.account.Give(units)
	} else {
		g.addTaker(units)
	}
}

// KeepRest keeps what a new grant says of the key, and the units for which nobody has waited. Those of a rule that
// holds need not be kept: the next report does not count them as held.
func (g *Grant) KeepRest() {
	if g.part.Holds() {
		g.keepBlock()
	} else {
		g.keepInLease()
	}
}

// reclaim takes back what a taker leaves of the grant.
func (g *Grant) reclaim(units uint32) {
	if g.part.Holds() {
		g.part.account.Reclaim(units)
	} else {
		g.reclaimLeased(units)
	}
}

// writeTo writes the grant to the subject that waits for it.
func (g *Grant) writeTo(n *Need, units uint32) {
	n.grant = g
	n.subject.Quota.Grant = g.forSubject(units)
	if g.part.Holds() {
		n.subject.Quota.Account = g.part.account
	}
}

// forSubject is the grant as a subject has it that gets so many units of it.
func (g *Grant) forSubject(units uint32) decide.Grant {
	return decide.Grant{
		Received: true, Units: units, EndNs: g.endNs, Denied: g.Denied, HeldBack: g.HeldBack,
		Blocked: g.Blocked, WaitNs: g.WaitNs, MonotonicNs: g.trip.CameNs, Standings: g.Standings,
	}
}
