package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// keeper keeps what the service grants for a part, and remembers what it says of the key. It is a key's lease for a
// rule that leases, and a key's account for one that holds.
//
// Units of a rule that leases go, in this order:
//
//	to                                     by              what is not spent there
//	the requests that have waited for the  handout.answer  takeBack: goes back when the request is decided
//	ask, in the order in which they came
//	the key's lease, for later requests    keepRest        CollectIdle: goes back when it is idle
//	the service, if they cannot stay       giveBack
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. Each gets one, and 18 are put into the lease. The
// client of the second request has left, so quota.Return{Grant: 7, Units: 1} is sent. Later requests take 4 units of
// the lease, and then none comes for idleNs: quota.Return{Grant: 7, Units: 14} is sent.
//
// Units of a rule that holds are in the key's account. Nothing goes back: what requests do not hold, the account's next
// report leaves out.
type keeper interface {
	// noteGiven notes that the subject has got its cost.
	noteGiven(s *decide.Subject)
	// keepRest keeps what the service has said of the key, and what no request has got.
	keepRest(h *handout)
	// takeBack takes back what a subject has got and has not taken.
	takeBack(left leased.GrantLeft)
}

// keeper is that of the part. Nobody asks for that of a look, which is granted nothing.
func (p *Part) keeper() keeper {
	if acc := p.Reporter.Account(); acc != nil {
		return accountKeeper{acc}
	}
	return &p.lease
}

type accountKeeper struct{ account *account.Account }

func (k accountKeeper) noteGiven(s *decide.Subject) {
	k.account.AddGiven(s.Cost)
	s.Carried.Account = k.account
}

func (k accountKeeper) keepRest(h *handout) {
	if h.remembersBlock() {
		k.account.RememberBlock(account.Block{Denial: h.denial(), Standings: h.told.Standings})
	}
}

func (k accountKeeper) takeBack(left leased.GrantLeft) { k.account.DropGiven(left.Units) }

func (at *leaseAt) noteGiven(*decide.Subject) {}

func (at *leaseAt) keepRest(h *handout) {
	w := at.source.worker
	e := at.change(w.clock.Now(), h.cameNs, h.writeInto) // a func literal would take TinyGo three allocations
	if e != nil && e.LeftOf(h.rest.GrantID) != nil {
		w.Returns.watch(at, h.rest.GrantID, h.cameNs)
	} else {
		w.Returns.giveBack(at.source, h.rest)
	}
}

func (at *leaseAt) takeBack(left leased.GrantLeft) {
	at.source.worker.Returns.giveBack(at.source, left)
}

// writeInto writes the answer into the key's lease, and puts the rest there if that may stay.
func (h *handout) writeInto(e *state.LeaseEntry) bool {
	h.writeAnswer(&e.Lease, h.part.lease.source, e.NowNs)
	mayStay := h.grant.Leased && h.isValid && !h.grant.Denied && e.NowNs < h.rest.EndNs
	if mayStay && h.rest.Units > 0 && e.Put(h.rest) {
		e.Allow(h.rest.Units) // no blocked key: a rule with a block leases nothing
	}
	return true
}

// writeAnswer writes into the source's lease what the service said of the key.
func (h *handout) writeAnswer(l *leased.Lease, src *Source, now int64) {
	l.Uncharged.Answer(h.part.Wire.Spent, h.isValid)
	l.RefillUntilNs, l.SilentUntilNs = 0, 0
	if !h.isValid {
		l.SilentUntilNs = now + account.MaxRememberNs
		return
	}
	given := h.grant.Units - h.rest.Units
	l.Standings = append(l.Standings[:0], h.told.Standings...)
	l.Rate.Add(now, src.refill.rateNs, given) // as takeLease does for what it takes
	switch {
	case h.remembersBlock():
		l.Block(h.denial(), now)
	case h.grant.Denied && src.keeps:
		l.Deny(h.part.Wire.Cost, h.denial(), now)
	}
}
