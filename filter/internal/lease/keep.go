package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// How the key's lease keeps a grant of a rule that leases: what it says of the key, and the units that nobody has, if
// they mayStay.
//
//	keepInLease    puts the units there for which nobody has waited, if their time is not over and the lease has room.
//	               Else they stay in Grant.Units, where the takers may leave more.
//	reclaimLeased  of the last taker, puts there what is in Grant.Units by now, also if its time is over: units of the
//	               grant may be there already, and all go back together.
//
// When no taker is left, returnToService has the units go back that are not in the lease.

// mayStay reports whether the key's lease may keep units of the grant, for later requests.
func (g *Grant) mayStay() bool { return g.Leased && !g.Failed && !g.Denied }

// addTaker counts a request that has got units.
func (g *Grant) addTaker(units uint32) {
	g.takers++
	g.everGiven = limit.AddSaturating(g.everGiven, units)
}

// keepInLease is KeepRest of a rule that leases.
func (g *Grant) keepInLease() {
	g.editLease((*Grant).writeNew)
	if g.takers == 0 {
		g.part.source.worker.Returns.returnToService(g)
	}
}

// reclaimLeased is reclaim of a rule that leases.
func (g *Grant) reclaimLeased(units uint32) {
	g.Units += units
	g.takers--
	if g.takers > 0 || g.Units == 0 {
		return
	}
	if g.mayStay() {
		g.editLease((*Grant).putInLease)
	}
	g.part.source.worker.Returns.returnToService(g)
}

// editLease has edit change the key's lease, and writes it. If another worker has written the lease meanwhile, it reads
// that and tries again. Once the lease is written, the units that edit has put there are not in Grant.Units any more.
// If it cannot be written, what the service has said of the key is lost, and the units stay there, to go back.
//
// edit is a method expression. It carries no value, so nothing is allocated for it.
func (g *Grant) editLease(edit func(*Grant, *state.LeaseEntry) (hasPut bool)) {
	src := g.part.source
	e := &src.worker.entry
	for range state.MaxRetries {
		if !src.readKept(e, g.part.leaseKey) {
			return
		}
		hasPut := edit(g, e)
		written := src.write(e)
		if written == state.OK && hasPut {
			src.worker.Returns.watch(g, e.NowNs)
			g.Units = 0
		}
		if written != state.Mismatch {
			return
		}
	}
}

// writeNew writes the service's answer into the lease, and puts the units of the new grant there, if they can be spent.
func (g *Grant) writeNew(e *state.LeaseEntry) (hasPut bool) {
	g.writeAnswer(&e.Lease, e.NowNs)
	return g.canBeSpent(e.NowNs) && g.putInLease(e)
}

// canBeSpent reports whether the grant has units that later requests can spend.
func (g *Grant) canBeSpent(now int64) bool { return g.Units > 0 && g.mayStay() && now < g.endNs }

// putInLease puts the grant's units into the lease, to those that it has of the same grant. A denial is forgotten whose
// cost can be spent now. It is none of a blocked key, because a rule with a block leases nothing.
func (g *Grant) putInLease(e *state.LeaseEntry) (hasPut bool) {
	e.Allow(g.Units)
	left := state.GrantLeft{Stream: g.trip.Stream, Number: g.Number, Units: g.Units, EndNs: g.endNs}
	stranded, hasPut := e.Put(e.NowNs, left)
	e.Replaced += stranded // of an ended stream. Write itself sets Replaced only for a new record, which has none
	return hasPut
}

// writeAnswer writes into the lease what the service said of the key.
func (g *Grant) writeAnswer(l *state.Lease, now int64) {
	src := g.part.source
	l.Uncharged.Answer(g.part.Wire.Spent, !g.Failed)
	l.SilentUntilNs = 0
	if g.Failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	l.Standings = append(l.Standings[:0], g.Standings...)
	l.Rate.Spend(now, src.refill.rateNs, g.everGiven) // as takeLease does for what it takes
	if g.remembersBlock() || g.Denied && src.keeps {
		g.writeDenial(l, now)
	}
}
