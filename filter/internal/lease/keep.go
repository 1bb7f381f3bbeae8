package lease

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// returnUnits gives units of the grant back with the next message, on the stream that got them or not at
// all.
func (c *Client) returnUnits(g *grant, units uint32) {
	if g.Number > 0 && units > 0 && g.stream == c.stream.number {
		c.returns = append(c.returns, quota.Return{Grant: g.Number, Units: units})
	}
}

// mayStay reports whether the key's lease may keep units of the grant, for later requests.
func (g *grant) mayStay() bool { return g.Leased && !g.Failed && !g.Denied }

// keepRest has the key's lease note what a new grant says, and keep the units for which nobody has waited.
// What becomes of these, and in the end of those that the takers leave:
//
//	takers  mayStay  keepRest                                    release, by the last taker
//	0       yes      They go into the lease.
//	0       no       They go back.
//	some    yes      They go into the lease.                     What is left joins them there.
//	some    no       They stay in g.Units: a grant goes back     They go back, with what is left.
//	                 once, so they wait for what is left.
//
// Units for which the lease has no room, or whose time is over when they come, go back too.
func (c *Client) keepRest(g *grant) {
	rest := g.Units
	if g.takers > 0 && !g.mayStay() {
		rest = 0
	}
	g.Units -= rest
	if !g.noteInLease(rest) {
		c.returnUnits(g, rest)
	}
}

// release takes into the grant what a taker leaves of it: see keepRest.
func (c *Client) release(g *grant, units uint32) {
	g.Units += units
	g.takers--
	if g.takers > 0 || g.Units == 0 {
		return
	}
	if !g.mayStay() || !g.addToLease(g.Units) {
		c.returnUnits(g, g.Units)
	}
}

// noteInLease has the key's lease note what a new grant says of the key, also if it has no units to keep. It returns
// whether the lease has kept the units: it keeps none whose time is over.
func (g *grant) noteInLease(units uint32) (kept bool) { return g.writeLease(true, units) }

// addToLease puts units that takers have left to those that the lease has of the grant, also if their time is over:
// they go back with these. It returns whether the lease has kept the units.
func (g *grant) addToLease(units uint32) (kept bool) { return g.writeLease(false, units) }

// writeLease changes the key's lease for noteInLease or addToLease, and writes it; both again if another worker writes
// first.
func (g *grant) writeLease(isNew bool, units uint32) (kept bool) {
	src := g.part.source
	w := src.worker
	e, wallNs := &w.entry, w.clock.Now()
	for range state.MaxRetries {
		read := src.table.ReadKey(e, g.part.leaseKey, wallNs, w.clock.Monotonic())
		if src.rereadAhead(e, read, wallNs) != state.OK {
			return false
		}
		if isNew {
			g.note(&e.Lease, e.NowNs)
		}
		isOver := isNew && e.NowNs >= g.endNs
		stranded, put := uint32(0), false
		if units > 0 && g.mayStay() && !isOver {
			stranded, put = g.put(e, units)
		}
		switch src.write(e) {
		case state.Mismatch:
		case state.OK:
			if put {
				src.rule.Metrics.LeaseLost += uint64(stranded)
				w.returnables.watchGrant(g, e.NowNs)
			}
			return put
		default:
			return false
		}
	}
	return false
}

// put puts units into the lease, to those of the same grant. A denial that the lease remembers is forgotten if its
// cost can be spent now: it is none of a blocked key, see block.go. stranded is how many units of an ended stream made
// room for them: these cannot go back.
func (g *grant) put(e *state.LeaseEntry, units uint32) (stranded uint32, ok bool) {
	if e.DeniedCost <= units {
		e.DeniedUntilNs = 0
	}
	return e.Put(e.NowNs, state.GrantLeft{Stream: g.stream, Number: g.Number, Units: units, EndNs: g.endNs})
}

// maxRememberNs is the longest time for which a worker decides about a key by what the service has
// said of it: that its store has failed for this key, or is starting, or that the key is denied or
// blocked. After that it asks again.
const maxRememberNs = 1_000_000_000

// note writes into the lease what the service said of the key.
func (g *grant) note(l *state.Lease, now int64) {
	src := g.part.source
	l.AskedUntilNs, l.SilentUntilNs = 0, 0
	if g.Failed {
		l.SilentUntilNs = now + maxRememberNs
		return
	}
	l.Uncharged -= min(l.Uncharged, g.part.Wire.Spent)
	l.Standings = append(l.Standings[:0], g.standings...)
	l.Rate.Spend(now, src.refill.rateNs, g.everGiven) // as takeLease does for what it takes
	if g.remembersBlock() || g.Denied && src.keeps {
		g.noteDenial(l, now)
	}
}

// noteDenial keeps the denial in the lease: of what was asked for, or of each cost if the key is blocked.
// Nobody asks again until the wait or the block is over, and no longer than maxRememberNs. If another
// denial still holds, the smaller cost of both is denied.
//
// In a lease, a denied cost of 0 says that the key is blocked. No other denial is of a Cost of 0. A refill has that
// Cost, but only rules without a block lease, and of these the service denies no Cost of 0. A request of cost 0 asks
// nothing of such rules: see asksNothing.
func (g *grant) noteDenial(l *state.Lease, now int64) {
	cost, holdsNs := g.part.Wire.Cost, int64(maxRememberNs)
	if g.remembersBlock() {
		cost, holdsNs = 0, min(holdsNs, g.blockNs-now)
	}
	if l.DeniedUntilNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	if g.WaitNs != limit.Never {
		l.PassNs = g.cameNs + g.WaitNs
		holdsNs = min(holdsNs, g.WaitNs)
	}
	l.DeniedUntilNs = now + holdsNs
}
