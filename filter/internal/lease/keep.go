package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// keeper keeps what a handout does not hand out, and counts what it does. Each part that asks for units has one:
//
//	           Source, of a rule that leases               accountKeeper, of a rule that holds
//	noteGiven  counts one more taker                       Account.AddGiven
//	keepRest   puts the answer and the units that nobody   remembers a block. Units need not be kept: the next
//	           has into the key's lease                    report does not count them as held
//	keepLeft   of the last taker, puts the units that      Account.DropGiven
//	           takers have left into the key's lease
type keeper interface {
	// noteGiven notes that a request has got units.
	noteGiven(h *Handout, units uint32)
	// keepRest keeps what a new grant says of the key, and the units for which nobody has waited.
	keepRest(h *Handout)
	// keepLeft keeps the units that a request leaves of those that it has got.
	keepLeft(h *Handout, units uint32)
}

// accountKeeper counts the units in the key's account.
type accountKeeper struct{ account *account.Account }

func (k accountKeeper) noteGiven(_ *Handout, units uint32) { k.account.AddGiven(units) }

func (k accountKeeper) keepRest(h *Handout) {
	if h.remembersBlock() {
		k.account.RememberBlock(h.forSubject(0), h.blockNs)
	}
}

func (k accountKeeper) keepLeft(_ *Handout, units uint32) { k.account.DropGiven(units) }

// A Source has the key's lease keep units for later requests, if they mayStay. Units that are not in the lease go back
// once no taker is left: until then takers may leave more.

func (*Source) noteGiven(h *Handout, units uint32) {
	h.takers++
	h.everGiven = limit.AddSaturating(h.everGiven, units)
}

func (src *Source) keepRest(h *Handout) {
	src.changeLease(h, (*Source).addAnswer)
	if h.takers == 0 {
		src.worker.Returns.returnToService(src, h)
	}
}

func (src *Source) keepLeft(h *Handout, units uint32) {
	h.units += units
	h.takers--
	if h.takers > 0 || h.units == 0 {
		return
	}
	if h.mayStay() {
		src.changeLease(h, (*Source).addUnits)
	}
	src.worker.Returns.returnToService(src, h)
}

// mayStay reports whether a lease may keep units of the grant, for later requests.
func (h *Handout) mayStay() bool { return h.grant.Leased && !h.failed && !h.grant.Denied }

// changeLease changes the lease of the handout's key. The change says how many of the handout's units it has put there:
//
//	the write is  the lease                               the units that were put there
//	OK            has the change                          are the lease's, and not the handout's any more
//	a Mismatch    was written by another worker: it is    are the handout's still, and put there again
//	              read anew, and changed again
//	else          is as it was: what the service has      are the handout's still, and go back
//	              said of the key is lost
func (src *Source) changeLease(h *Handout, change func(*Source, *Handout, *state.LeaseEntry) (put uint32)) {
	e := &src.worker.entry
	for range state.MaxRetries {
		if !src.readKept(e, h.part.leaseKey) {
			return
		}
		put := change(src, h, e)
		switch src.write(e) {
		case state.OK:
			h.units -= put
			if put > 0 {
				src.worker.Returns.watch(src, h, e.NowNs)
			}
			return
		case state.Mismatch:
		default:
			return
		}
	}
}

// addAnswer is the change by a new answer: what the service said of the key, and the units that nobody has. If their
// time is over when they come, they go back at once.
func (src *Source) addAnswer(h *Handout, e *state.LeaseEntry) (put uint32) {
	src.writeAnswer(h, &e.Lease, e.NowNs)
	if e.NowNs >= h.endNs {
		return 0
	}
	return src.addUnits(h, e)
}

// addUnits is the change by the units that nobody has: it puts all or none of them into the lease, if they may stay
// there. It does so also if their time is over, because the lease may have units of the grant already, and all of it
// goes back together.
func (*Source) addUnits(h *Handout, e *state.LeaseEntry) (put uint32) {
	if h.units == 0 || !h.mayStay() {
		return 0
	}
	e.Allow(h.units) // no blocked key: a rule with a block leases nothing
	if !e.Put(state.GrantLeft{GrantID: h.id(), Units: h.units, EndNs: h.endNs}) {
		return 0
	}
	return h.units
}

// writeAnswer writes into the lease what the service said of the key.
func (src *Source) writeAnswer(h *Handout, l *state.Lease, now int64) {
	l.Uncharged.Answer(h.part.Wire.Spent, !h.failed)
	l.SilentUntilNs = 0
	if h.failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	l.Standings = append(l.Standings[:0], h.standings...)
	l.Rate.Spend(now, src.refill.rateNs, h.everGiven) // as takeLease does for what it takes
	if h.remembersBlock() || h.grant.Denied && src.keeps {
		h.writeDenial(l, now)
	}
}
