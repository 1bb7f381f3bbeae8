package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// How the key's lease keeps a grant: what it says of the key, and the units for which nobody has waited. What becomes
// of these, and in the end of those that the takers leave:
//
//	takers  mayStay  KeepRest                                    release, by the last taker
//	0       yes      They go into the lease.
//	0       no       They go back.
//	some    yes      They go into the lease.                     What is left joins them there.
//	some    no       They stay in g.Units: a grant goes back     They go back, with what is left.
//	                 once, so they wait for what is left.
//
// Units for which the lease has no room, or whose time is over when they come, go back too.

// mayStay reports whether the key's lease may keep units of the grant, for later requests.
func (g *Grant) mayStay() bool { return g.Leased && !g.Failed && !g.Denied }

// KeepRest keeps what a new grant says of the key, and the units for which nobody has waited. Of units to be held,
// nothing need be kept: the worker reports what it has not given as not held.
func (g *Grant) KeepRest() {
	if acc := g.part.Account; acc != nil {
		g.keepBlock(acc)
		return
	}
	rest := g.Units
	if g.takers > 0 && !g.mayStay() {
		rest = 0
	}
	g.Units -= rest
	if !g.keepInLease(rest) {
		g.giveBack(rest)
	}
}

// release takes into the grant what a taker leaves of it.
func (g *Grant) release(units uint32) {
	g.Units += units
	g.takers--
	if g.takers > 0 || g.Units == 0 {
		return
	}
	if !g.mayStay() || !g.keepInLease(g.Units) {
		g.giveBack(g.Units)
	}
}

// giveBack gives units back to the service.
func (g *Grant) giveBack(units uint32) {
	g.part.source.worker.Returns.add(g, units)
}

// keepInLease has the key's lease note what the grant says of the key, once, and keep units of the grant. It returns
// whether the lease has kept them.
func (g *Grant) keepInLease(units uint32) (kept bool) {
	src := g.part.source
	e := &src.worker.entry
	for range state.MaxRetries {
		if !src.readKept(e, g.part.leaseKey) {
			return false
		}
		// Units that takers leave go into the lease also if their time is over, to go back with the others.
		mayPut := units > 0 && g.mayStay() && (g.isNoted || e.NowNs < g.endNs)
		if !g.isNoted {
			g.note(&e.Lease, e.NowNs)
		}
		put := mayPut && g.put(e, units)
		switch src.write(e) {
		case state.Mismatch:
		case state.OK:
			g.isNoted = true
			if put {
				src.worker.Returns.watchGrant(g, e.NowNs)
			}
			return put
		default:
			return false
		}
	}
	return false
}

// put puts units into the lease, to those of the same grant. A denial that the lease remembers is forgotten if its
// cost can be spent now: it is none of a blocked key.
func (g *Grant) put(e *state.LeaseEntry, units uint32) bool {
	if e.DeniedCost <= units {
		e.DeniedUntilNs = 0
	}
	left := state.GrantLeft{Stream: g.trip.Stream, Number: g.Number, Units: units, EndNs: g.endNs}
	stranded, ok := e.Put(e.NowNs, left)
	e.Replaced += stranded // units of an ended stream, which cannot go back: the write loses them
	return ok
}

// note writes into the lease what the service said of the key.
func (g *Grant) note(l *state.Lease, now int64) {
	src := g.part.source
	l.AskedUntilNs, l.SilentUntilNs = 0, 0
	if g.Failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	l.Uncharged -= min(l.Uncharged, g.part.Wire.Spent)
	l.Standings = append(l.Standings[:0], g.Standings...)
	l.Rate.Spend(now, src.refill.rateNs, g.everGiven) // as takeLease does for what it takes
	if g.remembersBlock() || g.Denied && src.keeps {
		g.noteDenial(l, now)
	}
}
