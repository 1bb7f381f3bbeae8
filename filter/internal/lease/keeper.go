package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// keeper has what no request has taken of a grant. A request that has got units points to it until it is decided: it
// may have units of one rule for as long as it waits for those of another.
type keeper interface {
	// noteGiven notes that a request has got units for the subject.
	noteGiven(s *decide.Subject, units uint32)
	// keepRest keeps what the handout has left, once all that have waited have theirs.
	keepRest(h *handout)
	// takeBack takes back what a request has left of its units, once it is decided.
	takeBack(units uint32)
}

// newKeeper is the keeper of the handout.
func (h *handout) newKeeper() keeper {
	if acc := h.part.Reporter.Account(); acc != nil {
		return accountKeeper{acc}
	}
	h.leases.at = h.part.lease
	return &h.leases
}

// Reclaim takes back what the request has got for the need and has not taken. It is called once the request is decided,
// or asks for the need anew.
func (n *Need) Reclaim() {
	if n.keeper == nil {
		return
	}
	own := &n.subject.Carried.Allotment
	n.keeper.takeBack(own.Units)
	*own = allot.Allotment{}
}

// accountKeeper is that of a rule that holds: the key's account counts what requests have got. Nothing has to go back:
// what the account does not count, the next report does not say as held.
type accountKeeper struct{ acc *account.Account }

func (k accountKeeper) noteGiven(s *decide.Subject, units uint32) {
	k.acc.AddGiven(units)
	s.Carried.Account = k.acc
}

func (k accountKeeper) keepRest(h *handout) {
	if h.remembersBlock() {
		b := account.Block{Standings: h.told.Standings, WaitNs: h.told.WaitNs, CameNs: h.cameNs}
		k.acc.RememberBlock(b, h.blockNs)
	}
}

func (k accountKeeper) takeBack(units uint32) { k.acc.DropGiven(units) }

// leaseKeeper is that of a rule that leases. A unit has three ways out: a request spends it, the key's lease keeps it
// for later requests, or the service gets it back.
//
//	       noteGiven: to requests that waited            Source.Take
//	handout.rest ------------> Subject.Carried.Allotment -----------> spent
//	     |                            |
//	     | keepRest                   | takeBack: what is not taken
//	     v                            |
//	k.rest <--------------------------+
//	     |
//	     +- changeLease --> the key's lease, if later requests may spend it
//	     +- giveBack -----> quota.Return, if not: see returns.go
//
// The service takes units of a grant back once. So what requests leave of a grant joins its other units, in the lease
// or here, and nothing of it goes back before the last request has left what it does not take.
//
// For example, two requests of cost 1 wait, and grant 7 has 20 units. keepRest puts 18 into the lease. The client of
// the second request has left, so takeBack puts its unit there too: the lease has 19 units of grant 7. Later requests
// spend 4 of them, and then none comes for idleNs. So CollectIdle takes the other 15 out of the lease, and they go back
// as quota.Return{Grant: 7, Units: 15}.
type leaseKeeper struct {
	at      leaseAt
	mayStay bool             // a lease may keep units of the grant
	rest    leased.GrantLeft // what neither a request nor the lease has
	takers  int              // requests that have units and are not decided

	// inLease says that units of the grant were put into the key's lease, which has a place for it, though they may be
	// spent by now. What rest has at the end could not be put there: the proxy's store has failed since.
	inLease bool
	putNs   int64 // when units were put there last
}

func (k *leaseKeeper) noteGiven(*decide.Subject, uint32) { k.takers++ }

// keepRest also writes into the lease what the service has said of the key.
func (k *leaseKeeper) keepRest(h *handout) {
	k.rest, k.mayStay = h.rest, h.mayStay()
	k.changeLease(h)
	if k.takers == 0 {
		k.end()
	}
}

func (k *leaseKeeper) takeBack(units uint32) {
	k.rest.Units += units
	k.takers--
	if k.takers > 0 {
		return
	}
	if k.rest.Units > 0 && k.mayStay {
		k.changeLease(nil)
	}
	k.end()
}

// changeLease writes the answer into the key's lease, unless it is nil, and puts the rest there, if that may stay. If
// the proxy's store fails, what the service has said of the key is lost, and the rest stays here.
func (k *leaseKeeper) changeLease(answer *handout) {
	clock := k.at.source.worker.clock
	for c := k.at.change(clock.Now(), clock.Monotonic()); c.read(); {
		if answer != nil {
			answer.writeAnswer(&c.Lease, k.at.source, c.NowNs)
		}
		isPut := k.putInto(&c.LeaseEntry)
		if !c.write() {
			continue
		}
		k.inLease = isPut
		if isPut {
			k.putNs = c.NowNs
			k.rest.Units = 0
		}
		return
	}
}

// putInto puts the rest into the lease, all of it or nothing. Units whose time is over are not put there, unless the
// lease has others of the grant: all of it goes back together.
func (k *leaseKeeper) putInto(e *state.LeaseEntry) (isPut bool) {
	isOver := e.NowNs >= k.rest.EndNs
	if k.rest.Units == 0 || !k.mayStay || isOver && !k.inLease || !e.Put(k.rest) {
		return false
	}
	if !isOver {
		e.Allow(k.rest.Units) // no blocked key: a rule with a block leases nothing
	}
	return true
}

// end has the grant go back, of which no request has units any more: at once if all of it is here, and else by
// CollectIdle. A grant goes back once, so what is here beside units in the lease is lost.
func (k *leaseKeeper) end() {
	src := k.at.source
	returns := &src.worker.Returns
	if !k.inLease {
		returns.giveBack(src, k.rest.GrantID, k.rest.Units)
		return
	}
	src.noteLost(k.rest.Units)
	returns.watch(k)
}
