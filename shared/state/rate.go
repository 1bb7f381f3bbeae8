package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Rate is how many units were spent in the period that began at FromNs, and in the
// one before it.
type Rate struct {
	FromNs      int64
	Now, Before uint32
}

func (r *Rate) read(b []byte) {
	*r = Rate{FromNs: int64(le.Uint64(b)), Now: le.Uint32(b[8:]), Before: le.Uint32(b[12:])}
}

func (r *Rate) put(b []byte) {
	le.PutUint64(b, uint64(r.FromNs))
	le.PutUint32(b[8:], r.Now)
	le.PutUint32(b[12:], r.Before)
}

// Over estimates how many units were spent in the last period: all of the current one's,
// and of the one before the share that is less than a period ago.
func (r *Rate) Over(nowNs, periodNs int64) uint32 {
	switch passed := nowNs - r.FromNs; {
	case passed < periodNs:
		return limit.AddSaturating(r.Now, uint32(uint64(r.Before)*uint64(periodNs-passed)/uint64(periodNs)))
	case passed < 2*periodNs:
		return uint32(uint64(r.Now) * uint64(2*periodNs-passed) / uint64(periodNs))
	}
	return 0
}

// Spent adds units to the rate.
func (r *Rate) Spent(nowNs, periodNs int64, units uint32) {
	switch passed := nowNs - r.FromNs; {
	case passed < periodNs:
	case passed < 2*periodNs:
		r.FromNs, r.Before, r.Now = r.FromNs+periodNs, r.Now, 0
	default:
		r.FromNs, r.Before, r.Now = nowNs, 0, 0
	}
	r.Now = limit.AddSaturating(r.Now, units)
}

// Refill says when a key's next units are asked for: when what is left lasts less than
// LeadNs at the rate that the key has over RateNs.
type Refill struct{ RateNs, LeadNs int64 }

// IsDue reports whether the time has come.
func (r *Refill) IsDue(left, rate uint32) bool {
	return uint64(left)*uint64(r.RateNs) < uint64(rate)*uint64(r.LeadNs)
}
