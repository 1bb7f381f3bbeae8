package quotaservice

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// record is what one key has counted: a value of the store, read. It holds the windows of all
// who ask for the key: as the policy has them, not shifted, and read from a store without the
// limits that the value does not have.
type record struct {
	generation uint64 // random when made; changed by what takes usages away
	quota.State
}

// errWindows is for the definition that would be one too many: no other's usage makes
// room for it.
var errWindows = errors.New("the key counts in 16 windows of other definitions: " +
	"more are refused until one of them ends")

// bringTo brings the record to storeNs. It reports whether the record was rebased: it lay ahead, because the
// store's clock was set back.
func (r *record) bringTo(storeNs int64) (rebased bool) {
	if r.NowNs > storeNs+maxAheadNs { // if storeNs is wrong, the store refuses what is decided by it
		r.SetBack(storeNs)
		r.generation = random()
		rebased = true
	}
	r.Roll(storeNs)
	return rebased
}

// forget forgets what the key has counted and what it holds, and reports whether there was something.
func (r *record) forget() (hadUsage bool) {
	isUsed := func(u limit.Usage) bool { return !u.IsZero() }
	hadUsage = r.Holders.Held() > 0 || slices.ContainsFunc(r.Usages, isUsed)
	r.State, r.generation = quota.State{NowNs: r.NowNs}, random()
	return hadUsage
}

// arrangeFor puts the definition's windows first in the record. Others stay behind them, with what they have
// counted, until they have ended. It returns those of the definition, shifted by the key's jitter: the record
// itself keeps them unshifted.
func (r *record) arrangeFor(d *definition, shifted []limit.Window, isStarting bool) (asked quota.State, err error) {
	if d.holdLimit != nil {
		if r.Holders == nil {
			r.Holders = &quota.Holders{}
		}
		r.Holders.Starting = isStarting
	}
	isAlike := func(v, w limit.Window) bool { return same(v, w) && v.Pays == w.Pays }
	if !slices.EqualFunc(r.Windows, d.Windows, isAlike) {
		if err := r.arrange(d.Windows); err != nil {
			return asked, err
		}
	}
	asked = r.Some(0, len(d.Windows))
	asked.Windows, asked.HoldLimit = shifted, d.holdLimit
	keepLogs(&asked)
	return asked, nil
}

// same reports whether the windows count as one. Buckets of other limits do not: each
// is refilled by its own, so that nobody's limits fill another's bucket.
func same(v, w limit.Window) bool {
	return v.Same(w) && (v.Algorithm != limit.TokenBucket || v.Limit == w.Limit && v.Burst == w.Burst)
}

// arrange puts the windows first. It leaves the record as it is if they are too many with the others.
func (r *record) arrange(first []limit.Window) error {
	windows := slices.Clip(first)
	for i, v := range r.Windows {
		if !r.Usages[i].IsZero() && find(first, v) < 0 {
			windows = append(windows, v)
		}
	}
	if len(windows) > quota.MaxWindows {
		return errWindows
	}
	s := quota.NewState(r.NowNs, windows)
	s.Holders = r.Holders
	for i, w := range windows {
		isBucket, spendBy := w.Algorithm == limit.TokenBucket, int64(0)
		if at := find(r.Windows, w); at >= 0 {
			s.Usages[i], spendBy = r.Usages[at], r.SpendBy(at)
		} else if isBucket {
			s.Usages[i], spendBy = r.bucketStart(&w)
		}
		if isBucket {
			s.SetSpendBy(i, spendBy)
		}
	}
	r.State = s
	return nil
}

// find returns the index of a window, -1 where it is not there.
func find(windows []limit.Window, w limit.Window) int {
	return slices.IndexFunc(windows, func(v limit.Window) bool { return same(v, w) })
}

// bucketStart returns what a new bucket begins with: the tokens of another of its period, and none
// of its debt. How much one of another period lacks depends on its limits.
func (r *record) bucketStart(w *limit.Window) (most limit.Usage, spendBy int64) {
	spendBy = r.NowNs
	for i, v := range r.Windows {
		u, of := r.Usages[i], r.SpendBy(i)
		if v.Algorithm != limit.TokenBucket || v.PeriodNs != w.PeriodNs || u.IsZero() {
			continue
		}
		if u.Tokens.Hi < 0 {
			u.Tokens = limit.Tokens{}
		}
		w.Roll(&u, of, of) // no more than w holds
		if w.Count(&u, of) > w.Count(&most, spendBy) {
			most, spendBy = u, of
		}
	}
	return most, spendBy
}

// keepLogs has no log forget units because the definition that asks remembers fewer.
func keepLogs(s *quota.State) {
	own := false
	for i := range s.Windows {
		n := len(s.Usages[i].Log)
		if n <= int(s.Windows[i].Units) {
			continue
		}
		if !own {
			s.Windows, own = slices.Clone(s.Windows), true
		}
		s.Windows[i].Units = uint16(n)
	}
}
