package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// While the service is silent, this proxy admits requests by its share of the limits. What these cost is Uncharged in
// the key's lease until the service has charged it. For example, with a timeout of 100 ms:
//
//	time     what happens                                           Uncharged            by
//	0 ms     A request asks. No answer comes.                       0
//	100 ms   Its time is over. It is admitted alone.                1 unit               takeShare
//	500 ms   The service is silent, so 4 more are admitted alone.   5 units              takeShare
//	1200 ms  The service answers again. A request asks, and its     5 units,             claimUncharged
//	         ask says Spent: 5.                                     asked until 1300 ms
//	1205 ms  A request of another worker asks. Its ask says         the same             claimUncharged
//	         Spent: 0.
//	1210 ms  The first of both asks is answered: the service has    0                    writeAnswer
//	         charged 5 units.
//
// If the lease has units at 1200 ms, no request asks. Then the next refill says Spent: see takeLease.
//
// What may go wrong with the ask that says Spent:
//
//	It is not answered by 1300 ms, or it has joined another   The next ask says Spent: 5 again. If the service has
//	ask, which has its own Spent (ask.add).                   heard the first one, it charges 5 units twice.
//	The answer has Failed: the service cannot reach the key.  The units stay Uncharged. A later ask says them.
//	The proxy's store drops the record of the lease.          The service never hears of the units.

// takeShare takes the cost of the proxy's share. First it writes into the lease that the service has to charge it: what
// the service never hears of would be admitted twice. It writes that once for a request, which may take of the share
// again: see Quota.NotedUncharged.
func (src *Source) takeShare(s *decide.Subject) state.Status {
	if !s.Quota.NotedUncharged {
		s.Quota.Lease.Uncharged.Add(s.Cost)
		if written := src.write(s.Quota.Lease); written != state.OK {
			return written
		}
		s.Quota.NotedUncharged = true
	}
	return src.local.Take(s)
}

// claimUncharged returns the units that the ask of a request has to say as Spent. If another worker has written the
// lease meanwhile, it returns none: a later ask says them. Another ask may be granted units before the service hears of
// these.
func (src *Source) claimUncharged(e *state.LeaseEntry) (spent uint32) {
	u := &e.Uncharged
	if u.Units == 0 || u.IsAsked(e.NowNs) {
		return 0
	}
	spent = u.Ask(e.NowNs + src.worker.Service.TimeoutNs())
	if src.write(e) != state.OK {
		return 0
	}
	return spent
}
