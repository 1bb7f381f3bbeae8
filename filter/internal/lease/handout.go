package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Four types have a grant's units:
//
//	type              lives in                  its Units
//	quota.Grant       the message               what the service has granted
//	Handout           Need.handout              what nobody has
//	decide.Allotment  Subject.Quota.Allotment   what its request may take
//	state.GrantLeft   the key's lease           what later requests may take
//
// The units of a rule that leases have three ways out: a request spends them, the key's lease keeps them for later
// requests, or the service gets them back.
//
//	  Give: to requests that waited                Source.Take
//	h.units -----------> Subject.Quota.Allotment -------------> spent
//	   |   ^                      |
//	   |   +---- Need.Reclaim ----+
//	   |            what is not taken
//	   |
//	   | KeepRest, once the waiters have theirs: the rest
//	   | Reclaim, of the last of them: what they have left
//	   |
//	   +- Source.addUnits ---> the key's lease, if later requests may spend it: a state.GrantLeft
//	   +- returnToService ---> quota.Return, if not: see returns.go
//
// The service takes units of a grant back once. So what requests leave of a grant joins its other units, in the lease
// or here, and all of it goes back together.
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. KeepRest puts 18 into the lease. The client of
// the second request has left, so Reclaim puts its unit there too: the lease has 19 units of grant 7. Later requests
// spend 4 of them, and then none comes for idleNs. So CollectIdle takes the other 15 out of the lease, and they go back
// as quota.Return{Grant: 7, Units: 15}.

// Handout hands out what the service has granted for one part of an ask. Its steps are EndReport, Give, KeepRest, and
// Reclaim of each Need that it has given units. What a step does beyond the handout, the part's keeper does: keep.go.
type Handout struct {
	grant     quota.Grant           // as it came, with a wait that is possible
	part      *Part                 // for which it was granted
	trip      Trip                  // of the ask
	endNs     int64                 // until when its units may be spent
	standings []state.LeaseStanding // how the key's windows stand

	units  uint32 // that nobody has
	failed bool   // it gives nothing: the service cannot reach the key, or EndReport has found no report

	// Of a rule that leases. See Source.noteGiven:
	takers    int    // requests that have units and are not decided
	everGiven uint32 // units that requests have got, whatever they do with them: the key's rate counts them

	// Of a denial:
	blockNs      int64 // until when the key is blocked, 0 = it is not
	hasToldBlock bool  // a request was told that the ask has begun the block
}

// Trip is that of an ask to the service and back.
type Trip struct {
	Stream         uint32
	SentNs, CameNs int64
}

// NewHandout is of the grant for a part of an ask, nil if the service has none for it.
func NewHandout(p *Part, grant *quota.Grant, trip Trip) *Handout {
	if grant == nil {
		grant = &quota.Grant{Failed: true}
	}
	h := &Handout{
		grant: *grant, part: p, trip: trip, endNs: trip.SentNs + min(max(grant.ValidNs, 0), state.MaxLeaseNs),
		standings: p.standings(grant, trip.CameNs), units: grant.Units, failed: grant.Failed,
	}
	if grant.WaitNs != limit.Never {
		h.grant.WaitNs = min(max(grant.WaitNs, 0), quota.MostWaitNs(p.Definition.Windows))
	}
	h.readBlock()
	return h
}

// id says which grant it hands out.
func (h *Handout) id() state.GrantID {
	return state.GrantID{Stream: h.trip.Stream, Number: h.grant.Number}
}

// standings is how the windows of the part's key stand, by a grant that came at cameNs.
//
// It and NewHandout bound what the service says of times by what can be, whatever a broken one answers. Ends and resets
// become instants. WaitNs stays a duration, from when the grant came on. The service counts its durations from an
// instant between SentNs and CameNs. A lease counts from SentNs, so it never ends later than at the service. Windows
// count from CameNs, so they never reset sooner. Both are the safe side.
func (p *Part) standings(grant *quota.Grant, cameNs int64) (standings []state.LeaseStanding) {
	mostNs := quota.MostWaitNs(p.Definition.Windows)
	for _, st := range grant.Windows {
		resetNs := min(max(st.ResetNs, 0), mostNs)
		standings = append(standings, state.LeaseStanding{Used: st.Used, ResetNs: cameNs + resetNs})
	}
	return standings
}

// EndReport ends the report of the part's account, if it has one. If the report was given up, the handout gives
// nothing.
func (h *Handout) EndReport() {
	acc := h.part.Account()
	if acc != nil && !acc.EndReport(h.part.Wire.Number, &h.grant, h.trip.CameNs) {
		h.failed = true
	}
}

// Give gives a request that has waited the units that it needs, if the handout has them, or the denial, if what was
// denied costs no more. Requests are given in the order in which they came.
func (h *Handout) Give(needs []Need) {
	if h.failed {
		return
	}
	for i := range needs { // a request has one need of each definition
		n := &needs[i]
		if n.handout != nil || n.definition != h.part.Wire.Definition {
			continue
		}
		switch cost := n.subject.Cost; {
		case h.grant.Denied && cost >= h.part.Wire.Cost:
			h.deny(n)
		case !h.grant.Denied && h.units >= cost && h.trip.CameNs < h.endNs:
			h.writeTo(n, cost)
			h.units -= cost
			h.part.keeper.noteGiven(h, cost)
		}
	}
}

// writeTo writes the grant to the subject that waits for it, with so many units.
func (h *Handout) writeTo(n *Need, units uint32) {
	n.handout = h
	n.subject.Quota.Allotment = h.forSubject(units)
	if acc := h.part.Account(); acc != nil {
		n.subject.Quota.Account = acc
	}
}

// forSubject is the grant as a subject has it that gets so many units of it.
func (h *Handout) forSubject(units uint32) decide.Allotment {
	return decide.Allotment{
		Received: true, Units: units, EndNs: h.endNs, Denied: h.grant.Denied, HeldBack: h.grant.HeldBack,
		Blocked: h.grant.Blocked, WaitNs: h.grant.WaitNs, MonotonicNs: h.trip.CameNs, Standings: h.standings,
	}
}

// KeepRest keeps what the grant says of the key, and the units for which nobody has waited.
func (h *Handout) KeepRest() { h.part.keeper.keepRest(h) }
