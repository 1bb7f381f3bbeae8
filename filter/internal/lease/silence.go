package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// While the service is silent, this proxy admits requests by its share of the limits. What these cost is Uncharged in
// the key's lease until the service has charged it. For example, with a timeout of 100 ms:
//
//	time     what happens                                           Uncharged in the     by
//	                                                                lease
//	0 ms     A request asks. No answer comes.                       0
//	100 ms   Its time is over. It is admitted alone.                1 unit               takeShare
//	500 ms   The service is silent, so 4 more are admitted alone.   5 units              takeShare
//	1200 ms  The service answers again. A request asks, and its     5 units,             tellUncharged
//	         ask tells that 5 are Uncharged.                        told until 1300 ms
//	1205 ms  A request of another worker asks. Its ask tells        the same             tellUncharged
//	         nothing.
//	1210 ms  The first of both asks is answered: the service has    0                    writeAnswer
//	         charged 5 units.
//
// If the lease has units at 1200 ms, and no request asks, the next refill tells.
//
// What may go wrong with the ask that tells:
//
//	No answer to it comes by 1300 ms.          The next ask tells the 5 units again. If the service has heard the first
//	                                           one, it charges 5 units twice.
//	Its stream ends.                           The same ask tells them again on the next stream, unless another one has
//	                                           told them since. If no request waits for it, an ask tells them after
//	                                           1300 ms. The service may charge them twice, too.
//	The answer has Failed: the service cannot  The units stay Uncharged. The next ask tells them.
//	reach the key.
//	The answer cannot be written.              After 1300 ms an ask tells them again, and the service charges them twice.
//	It is under way while a request that was   The service charges the units all the same.
//	admitted alone is refunded.
//	The service answers Busy, for another      They stay Uncharged, though it may have charged them.
//	part of the ask.
//	The record is lost. For a new one in a     The service never hears of the units.
//	full page, state takes a record with
//	units Uncharged last.

// takeShare takes the cost of the proxy's share, and writes into the lease that the service has to charge it. If it
// cannot, the share gets the cost back: what the service never hears of would be admitted twice.
func (src *LeaseSource) takeShare(s *decide.Subject) state.Status {
	taken := src.local.Take(s)
	if taken != state.OK {
		return taken
	}
	at := src.leases.At(s.Cluster.Lease.Key())
	written := at.Change(s.Record.Now, s.Cluster.MonotonicNs, func(e *state.LeaseEntry) bool {
		e.Uncharged.Add(s.Cost)
		return true
	})
	if !written {
		src.local.Refund(s, s.Record.Now)
		return state.Failed
	}
	return state.OK
}

// refundShare undoes takeShare. The request may take of the share once more, after it has waited for another rule.
func (src *LeaseSource) refundShare(s *decide.Subject, wallNs int64) bool {
	at := src.leases.At(s.Cluster.Lease.Key())
	removed := at.Change(wallNs, s.Cluster.MonotonicNs, func(e *state.LeaseEntry) bool {
		return e.Uncharged.Remove(s.Cost)
	})
	return src.local.Refund(s, wallNs) && removed
}

// tellUncharged has the part tell the units of its key that are Uncharged, and notes that in the lease. It tells none
// if another ask does, or if the lease cannot be written.
func (p *Part) tellUncharged(now int64) {
	worker := p.source.worker
	var told leased.Telling
	written := p.source.leases.At(p.leaseKey).Change(worker.clock.Now(), now, func(e *state.LeaseEntry) bool {
		told = e.Uncharged.Tell(p.told, e.NowNs, e.NowNs+worker.Service.TimeoutNs)
		return told.Units > 0
	})
	if !written {
		told = leased.Telling{}
	}
	p.told, p.Wire.Uncharged = told, told.Units
}
