package lease

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// refill says when a key's next units are asked for ahead of need, and how many. It looks as far
// ahead as quota.HorizonNs says, and measures how fast units are taken over half of that. So the
// rate follows a change of traffic within the time for which units are asked.
//
// For example, a limit of 1000 a minute has a horizon of 6 s. A key of which 300 units were taken in
// the last 3 s needs 600 within 6 s, so that many are asked for. They are asked for when what is
// left lasts less than 100 ms: when fewer than 10 units are left.
type refill struct {
	rateNs int64 // over which the rate is measured: half of the horizon
	leadNs int64 // how long what is left must last
}

// maxLeadNs is the timeout by default: by then the service has answered, or it is silent.
const maxLeadNs = 100_000_000

func refillOf(windows []limit.Window) refill {
	half := quota.HorizonNs(windows) / 2
	return refill{rateNs: max(half, 1), leadNs: min(half, maxLeadNs)}
}

// rate is how many units of the key were taken in the last rateNs.
func (r *refill) rate(e *state.LeaseEntry) uint32 { return e.Rate.Over(e.NowNs, r.rateNs) }

// ahead is how many units the key needs within the horizon, which is twice rateNs.
func (r *refill) ahead(e *state.LeaseEntry) uint32 {
	rate := r.rate(e)
	return limit.AddSaturating(rate, rate)
}

// isDue reports whether what is left lasts less than leadNs.
func (r *refill) isDue(e *state.LeaseEntry) bool {
	return float64(e.Left(e.NowNs))*float64(r.rateNs) < float64(r.rate(e))*float64(r.leadNs) // beyond 64 bits
}

// beginRefill reports whether units are to be asked for ahead of need. takeLease writes the lease, together with what
// it takes. Until the timeout no worker of this proxy asks ahead again, or until writeAnswer has the answer to any ask
// of the key: each asks ahead, so the lease has more units then.
func (src *LeaseSource) beginRefill(e *state.LeaseEntry) (begins bool) {
	service := &src.worker.Service
	if service.Silent || e.RefillUntilNs > e.NowNs || !src.refill.isDue(e) {
		return false
	}
	e.RefillUntilNs = e.NowNs + service.TimeoutNs
	return true
}
