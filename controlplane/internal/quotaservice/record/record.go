// Package record is what one key has counted: the windows of all who ask for the key, and its holders. The store
// keeps it as bytes, which Append writes and Parse reads.
//
// Its invariant: what a definition has counted stays until its window has ended, whichever other definitions ask for
// the key meanwhile. It knows nothing of the store, and not what is counted for.
//
// A record lives for one decision, or longer while the service remembers it:
//
//	Parse       reads it from the store's bytes, or New makes one that has counted nothing
//	BringTo     moves it to the store's time
//	ArrangeFor  puts a definition's windows first, and returns the View on which an Action is carried out
//	Append      writes its bytes for the swap
//
// To read it:
//
//	record.go  a Record, and how definitions share it
//	value.go   its bytes in the store: the format that all releases share
package record

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Record is what one key has counted. balance.State draws which forms its windows have.
type Record struct {
	Generation uint64 // another one since something took usages away: see Renew
	hasHolders bool   // a definition that holds units has asked: the bytes have holders
	balance.State
}

// maxAheadNs is how far ahead of the store's clock a record may be. If it lies further ahead, the clock was set back.
const maxAheadNs = 10_000_000_000

// New returns the record of a key that has counted nothing.
func New(storeNs int64) *Record {
	r := &Record{State: balance.State{NowNs: storeNs}}
	r.Renew()
	return r
}

// Clone returns a copy, on which operations can be decided to see what they would change.
func (r *Record) Clone() *Record {
	c := *r
	c.State = r.State.Clone()
	return &c
}

// Renew gives the record another generation: what was counted before cannot be uncounted any more.
func (r *Record) Renew() { r.Generation = rand.Uint64() } //nolint:gosec // nobody gains by guessing it

// ErrWindows is for the definition that would be one too many: no other's usage makes
// room for it.
var ErrWindows = errors.New("the key counts in 16 windows of other definitions: " +
	"more are refused until one of them ends")

// BringTo brings the record to storeNs. It reports whether the record was rebased: it lay ahead, because the
// store's clock was set back.
func (r *Record) BringTo(storeNs int64) (rebased bool) {
	if r.NowNs > storeNs+maxAheadNs { // if storeNs is wrong, the store refuses what is decided by it
		r.SetBack(storeNs)
		r.Renew()
		rebased = true
	}
	r.Roll(storeNs)
	return rebased
}

// Forget forgets what the key has counted and what it holds, and reports whether there was something.
func (r *Record) Forget() (hadUsage bool) {
	isUsed := func(u limit.Usage) bool { return !u.IsZero() }
	hadUsage = r.Holders.Held() > 0 || slices.ContainsFunc(r.Usages, isUsed)
	*r = *New(r.NowNs)
	return hadUsage
}

// ArrangeFor puts a definition's windows first in the record. Others stay behind them, with what they have counted,
// until they have ended. It returns the record as the definition sees it:
//
//	windows  the definition's, for the record
//	shifted  the same, shifted by the key's jitter, for the View
//	hold     its limit.Concurrency, for the View; nil = it has none
func (r *Record) ArrangeFor(windows, shifted []limit.Window, hold *limit.Window) (v balance.View, err error) {
	if !slices.EqualFunc(r.Windows, windows, needsNoChange) {
		if err := r.arrange(windows); err != nil {
			return v, err
		}
	}
	r.hasHolders = r.hasHolders || hold != nil
	return balance.View{State: &r.State, Windows: r.keepLogs(shifted), HoldLimit: hold}, nil
}

// Windows are compared in four ways. Each looks at the fields that are marked:
//
//	                                     limit.Window.Same  countsAsOne     needsNoChange   limit.Window.Compare
//	Algorithm                            x                  x               x               x
//	PeriodNs, OffsetNs, Jitter, Elastic  not of a block     not of a block  not of a block  x
//	Limit and Burst of a bucket                             x               x
//	Pays                                                                    x
//
// Same is whether two windows count the same. countsAsOne is whether they share a usage in the record, needsNoChange
// whether the record's window need not be replaced by the definition's. By Compare definitions list their windows.

// countsAsOne reports whether the windows share what they have counted. Buckets of other limits do not: each
// is refilled by its own, so that nobody's limits fill another's bucket.
func countsAsOne(v, w limit.Window) bool {
	return v.Same(w) && (v.Algorithm != limit.TokenBucket || v.Limit == w.Limit && v.Burst == w.Burst)
}

// needsNoChange reports whether window w of a definition is in the record already, as v.
func needsNoChange(v, w limit.Window) bool { return countsAsOne(v, w) && v.Pays == w.Pays }

// arrange puts the windows first. It leaves the record as it is if they are too many with the others.
func (r *Record) arrange(first []limit.Window) error {
	windows := slices.Clip(first)
	for i, v := range r.Windows {
		if !r.Usages[i].IsZero() && find(first, v) < 0 {
			windows = append(windows, v)
		}
	}
	if len(windows) > quota.MaxWindows {
		return ErrWindows
	}
	s := balance.NewState(r.NowNs, windows)
	s.Holders = r.Holders
	for i, w := range windows {
		spendBy := r.NowNs
		if at := find(r.Windows, w); at >= 0 {
			s.Usages[i], spendBy = r.Usages[at], r.SpendBy(at)
		} else if w.Algorithm == limit.TokenBucket {
			s.Usages[i], spendBy = r.bucketStart(&w)
		}
		s.SetSpendBy(i, spendBy)
	}
	r.State = s
	return nil
}

// find returns the index of a window, -1 where it is not there.
func find(windows []limit.Window, w limit.Window) int {
	return slices.IndexFunc(windows, func(v limit.Window) bool { return countsAsOne(v, w) })
}

// bucketStart returns what a new bucket begins with. It takes over the tokens of another bucket, but no debt. If the
// record has several, it takes those of the emptiest one. If it has none, the new bucket is full. A bucket of another
// period does not count, because its tokens mean something else. For example, the record has a bucket with 80 of 100:
//
//	a new one of 200  has 80
//	a new one of 50   has 50, which is all that it holds
func (r *Record) bucketStart(w *limit.Window) (emptiest limit.Usage, spendBy int64) {
	spendBy = r.NowNs
	for i, v := range r.Windows {
		u, of := r.Usages[i], r.SpendBy(i)
		if v.Algorithm != limit.TokenBucket || v.PeriodNs != w.PeriodNs || u.IsZero() {
			continue
		}
		if u.Tokens.Hi < 0 {
			u.Tokens = limit.Tokens{}
		}
		clampTo(w, &u, of)
		if w.Count(&u, of) > w.Count(&emptiest, spendBy) {
			emptiest, spendBy = u, of
		}
	}
	return emptiest, spendBy
}

// clampTo takes away what a bucket's usage has more than w holds. Roll does so, also if no time passes.
func clampTo(w *limit.Window, u *limit.Usage, nowNs int64) { w.Roll(u, nowNs, nowNs) }

// keepLogs returns the windows, changed so that no log forgets units because the definition that asks remembers fewer.
// arrange has put them first in the record, so they have its first Usages.
func (r *Record) keepLogs(windows []limit.Window) []limit.Window {
	own := false
	for i := range windows {
		n := len(r.Usages[i].Log)
		if n <= int(windows[i].Units) {
			continue
		}
		if !own {
			windows, own = slices.Clone(windows), true
		}
		windows[i].Units = uint16(n)
	}
	return windows
}
