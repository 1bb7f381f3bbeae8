package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// keeper keeps what a handout does not hand out, and counts what it does. Each part that asks for units has one:
//
//	          leaseKeeper, of a rule that leases          accountKeeper, of a rule that holds
//	give      counts one more taker                       Account.AddGiven
//	keepRest  puts the answer and the units that nobody   remembers a block. Units need not be kept: the next
//	          has into the key's lease                    report does not count them as held
//	reclaim   of the last taker, puts the units that      Account.DropGiven
//	          takers have left into the key's lease
type keeper interface {
	// give notes that a request has got units.
	give(units uint32)
	// keepRest keeps what a new grant says of the key, and the units for which nobody has waited.
	keepRest(h *Handout)
	// reclaim takes back what a request leaves of the units that it has got.
	reclaim(h *Handout, units uint32)
}

// accountKeeper counts the units in the key's account.
type accountKeeper struct{ account *account.Account }

func (k accountKeeper) give(units uint32) { k.account.AddGiven(units) }

func (k accountKeeper) keepRest(h *Handout) {
	if h.remembersBlock() {
		k.account.RememberBlock(h.forSubject(0), h.blockNs)
	}
}

func (k accountKeeper) reclaim(_ *Handout, units uint32) { k.account.DropGiven(units) }

// leaseKeeper has the key's lease keep units for later requests, if they mayStay. Units that are not in the lease go
// back once no taker is left: until then takers may leave more. A part is granted once, so the keeper is of one grant.
type leaseKeeper struct {
	source *Source
	key    state.LeaseKey

	takers    int    // requests that have units and are not decided
	everGiven uint32 // units that requests have got, whatever they do with them: the key's rate counts them
}

func (k *leaseKeeper) give(units uint32) {
	k.takers++
	k.everGiven = limit.AddSaturating(k.everGiven, units)
}

func (k *leaseKeeper) keepRest(h *Handout) {
	k.writeLease(h, true)
	if k.takers == 0 {
		k.source.worker.Returns.returnToService(k.source, h)
	}
}

func (k *leaseKeeper) reclaim(h *Handout, units uint32) {
	h.units += units
	k.takers--
	if k.takers > 0 || h.units == 0 {
		return
	}
	if h.mayStay() {
		k.writeLease(h, false)
	}
	k.source.worker.Returns.returnToService(k.source, h)
}

// mayStay reports whether a lease may keep units of the grant, for later requests.
func (h *Handout) mayStay() bool { return h.grant.Leased && !h.failed && !h.grant.Denied }

// writeLease writes into the key's lease the service's answer, if it is new, and the units that nobody has, if they may
// stay there:
//
//	the write is  the lease                               the units that were put there
//	OK            has both                                are the lease's, and not the handout's any more
//	a Mismatch    was written by another worker: it is    are the handout's still, and put there again
//	              read anew, and changed again
//	else          is as it was: what the service has      are the handout's still, and go back
//	              said of the key is lost
func (k *leaseKeeper) writeLease(h *Handout, isNew bool) {
	e := &k.source.worker.entry
	for range state.MaxRetries {
		if !k.source.readKept(e, k.key) {
			return
		}
		if isNew {
			k.writeAnswer(h, &e.Lease, e.NowNs)
		}
		put := uint32(0)
		if !isNew || e.NowNs < h.endNs { // units of an old grant may be there already: all of it goes back together
			put = k.put(h, e)
		}
		switch k.source.write(e) {
		case state.OK:
			h.units -= put
			if put > 0 {
				k.source.worker.Returns.watch(k, h, e.NowNs)
			}
			return
		case state.Mismatch:
		default:
			return
		}
	}
}

// put puts the handout's units into the lease, all or none, if they may stay there. A denial is forgotten whose cost
// can be spent now. It is none of a blocked key, because a rule with a block leases nothing.
func (k *leaseKeeper) put(h *Handout, e *state.LeaseEntry) (put uint32) {
	if h.units == 0 || !h.mayStay() {
		return 0
	}
	e.Allow(h.units)
	left := state.GrantLeft{Stream: h.trip.Stream, Number: h.grant.Number, Units: h.units, EndNs: h.endNs}
	if !e.Put(left) {
		return 0
	}
	return h.units
}

// writeAnswer writes into the lease what the service said of the key.
func (k *leaseKeeper) writeAnswer(h *Handout, l *state.Lease, now int64) {
	l.Uncharged.Answer(h.part.Wire.Spent, !h.failed)
	l.SilentUntilNs = 0
	if h.failed {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	l.Standings = append(l.Standings[:0], h.standings...)
	l.Rate.Spend(now, k.source.refill.rateNs, k.everGiven) // as takeLease does for what it takes
	if h.remembersBlock() || h.grant.Denied && k.source.keeps {
		h.writeDenial(l, now)
	}
}
