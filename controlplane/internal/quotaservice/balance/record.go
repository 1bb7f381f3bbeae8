// Package balance is what one key has counted over all proxies, and what that leaves: the arithmetic by which the
// quota service decides what it grants.
//
// Its invariant: what is granted has been counted before, and counts until nobody may spend it. So nothing that gets
// lost, repeated or delayed on the way to a proxy admits more than the limit. It knows no store and no stream.
//
// The store keeps a Record of each key. A View is how a definition that asks sees it: it has the definition's limits,
// and shares what the Record has counted.
//
//	Record, of the store           View, of a definition
//	minute  42 used          ◀───  minute, limit 100   58 are unused
//	hour    80 used          ◀───  hour, limit 1000
//	day     90 used                another definition asks for the day
//	Holders: worker 7 holds 2
//
// A record lives for one decision, or longer while the service remembers it:
//
//	r := NewRecord(now) or recordbytes.Parse(bytes)
//	r.BringTo(now)                                            it counts nothing that has ended by now
//	view, err := r.ArrangeFor(windows, hold, startingForNs)   with the definition's windows first
//	offer := view.OfferLease(lease, &part)
//	counted := view.Take(offer.Units, offer.SpendByNs)        if it Passes; else nothing
//	view.Return(&counted, n)                                  when units come back
//	recordbytes.Append(b, r, nonce)                           and the store swaps it in
//
// To read it, begin with example_test.go, which plays a lease, a hold, and two definitions that share a key. Then:
//
//	record.go  Record: how it moves to a later instant, when it counts nothing any more, and how definitions share it.
//	           What a definition has counted stays until its window has ended, whichever other definitions ask
//	window.go  one window of a key, with what it has counted: as a Record has it, and as a View has it
//	view.go    View: how the key stands, what counts, and what is given back
//	offer.go   Offer: what a part can be granted, and until when it may be spent; Denial: why it is granted nothing
//	debt.go    what counts whatever is left, and how windows pay it
//	hold.go    Note: what a part is granted to hold, and Holders: what workers hold of a key
//
// The invariant is tested on random histories: that of leases in ../neverover_test.go, by a service, its store and
// proxies; that of holds in holdmodel_test.go, by workers whose messages get lost.
package balance

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Record is what one key has counted at NowNs: the store keeps it. It has the windows of all definitions that have
// asked for the key, and what workers hold of it.
//
// It can be rolled, and charged what silent workers held. But only a View is asked, because a Record's windows may lack
// limits. For example, a minute with limit 5 and a jitter of 10 seconds, and a log of 5 units:
//
//	in a Record  as its definition has it, once that has asked  limit 5, ends at 12:01:00               Units 5
//	             as read from bytes                             no limit, ends at 12:01:00              no Units
//	in a View    shifted for the key                            limit 5, ends at 12:01:04 for this key  Units 5
//	             with Units for what the Record has counted     the same                                Units 7
//
// Rolling needs no more than the bytes have: of a bucket, they have its Limit and Burst. If a window ends by the key's
// own grid, its usage has the end. If units of the key are held, they have Pays. For charging, see chargeSilent.
type Record struct {
	Generation uint64 // another one since something took usages away: see Renew
	NowNs      int64
	Windows    []limit.Window
	Usages     []Usage // by window
	Holders    Holders
	HasHolders bool // a definition that holds units has asked
}

// NewRecord returns the record of a key that has counted nothing in these windows.
func NewRecord(storeNs int64, windows ...limit.Window) *Record {
	r := &Record{NowNs: storeNs, Windows: windows, Usages: make([]Usage, len(windows))}
	for i := range windows {
		r.Usages[i].AsOfNs = storeNs
	}
	r.Renew()
	return r
}

// Renew gives the record another generation: what was counted before cannot be uncounted any more.
func (r *Record) Renew() { r.Generation = rand.Uint64() } //nolint:gosec // nobody gains by guessing it

// maxAheadNs is how far ahead of the store's clock a record may be. If it lies further ahead, the clock was set back.
const maxAheadNs = 10_000_000_000

// BringTo brings the record to storeNs. It reports whether the record was rebased: it lay ahead, because the
// store's clock was set back.
func (r *Record) BringTo(storeNs int64) (rebased bool) {
	if r.NowNs > storeNs+maxAheadNs { // if storeNs is wrong, the store refuses what is decided by it
		r.setBack(storeNs)
		r.Renew()
		rebased = true
	}
	r.Roll(storeNs)
	return rebased
}

// Roll brings r to now, or leaves it as it is if it is later already. A worker that has been silent for too long
// is charged what it held, at the instant when its hold ended.
func (r *Record) Roll(now int64) {
	for _, silent := range r.Holders.dropSilent(now) {
		r.rollWindows(silent.endNs())
		r.chargeSilent(silent.Held)
	}
	r.rollWindows(now)
}

func (r *Record) rollWindows(now int64) {
	now = max(now, r.NowNs)
	for i := range r.Windows {
		r.window(i).roll(now)
	}
	r.NowNs = now
}

// setBack moves r back to now, because the clock was set back.
func (r *Record) setBack(now int64) {
	for i := range r.Windows {
		r.window(i).setBack(now)
	}
	for i := range r.Holders {
		r.Holders[i].NotedNs += now - r.NowNs
	}
	r.NowNs = now
}

// Forget forgets what the key has counted and what it holds, and reports whether there was something.
func (r *Record) Forget() (hadUsage bool) {
	isUsed := func(u Usage) bool { return !u.IsZero() }
	hadUsage = r.Holders.Held() > 0 || slices.ContainsFunc(r.Usages, isUsed)
	*r = *NewRecord(r.NowNs)
	return hadUsage
}

// ExpiryNs returns an instant from which r counts and holds nothing, if nobody asks for the key until then. It takes
// all that is held for charged at once, when the last hold ends. If several workers hold units, the other holds are
// charged before, so r may count nothing a little earlier already.
func (r *Record) ExpiryNs() int64 {
	expiry := max(r.NowNs, r.Holders.endNs())
	if held := r.Holders.Held(); held > 0 {
		after := *r
		after.Holders = nil // all have ended by then
		r = after.Clone()
		r.rollWindows(expiry)
		r.chargeSilent(held)
	}
	for i := range r.Windows {
		expiry = max(expiry, r.window(i).expiryNs())
	}
	return expiry
}

// Clone returns a copy, on which operations can be decided to see what they would change. It shares only the Windows,
// which nothing changes in place.
func (r *Record) Clone() *Record {
	c := *r
	c.Usages, c.Holders = slices.Clone(r.Usages), slices.Clone(r.Holders)
	for i := range c.Usages {
		c.Usages[i].Log = slices.Clone(c.Usages[i].Log)
	}
	return &c
}

// KeyWindows are the windows of a definition, as they hold for one key. Both lists have the same order.
type KeyWindows struct {
	Defined []limit.Window // as the definition has them: the Record keeps them
	Shifted []limit.Window // those with jitter begin later, by the key: the View has them
}

// ArrangeFor puts a definition's windows first in the record. Others stay behind them, with what they have counted,
// until they have ended. It returns the record as the definition sees it, until the record is arranged again. hold is
// its limit.Concurrency; nil = it has none. startingForNs is View.StartingForNs.
func (r *Record) ArrangeFor(windows KeyWindows, hold *limit.Window, startingForNs int64) (v View, err error) {
	if !slices.Equal(r.Windows, windows.Defined) {
		if err := r.arrange(windows.Defined); err != nil {
			return v, err
		}
	}
	r.HasHolders = r.HasHolders || hold != nil
	return View{record: r, Windows: r.keepLogs(windows.Shifted), HoldLimit: hold, StartingForNs: startingForNs}, nil
}

// ErrWindows is for the definition that would be one too many: no other's usage makes
// room for it.
var ErrWindows = errors.New("the key counts in 16 windows of other definitions: " +
	"more are refused until one of them ends")

// countsAsOne reports whether the windows share what they have counted. Limits make no difference, but for buckets:
// each is refilled by its own, so that nobody's limits fill another's bucket.
func countsAsOne(v, w limit.Window) bool {
	return v.Same(w) && (v.Algorithm != limit.TokenBucket || v.Limit == w.Limit && v.Burst == w.Burst)
}

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
	old := *r
	r.Windows, r.Usages = windows, make([]Usage, len(windows))
	for i, w := range windows {
		switch at := find(old.Windows, w); {
		case at >= 0:
			r.Usages[i] = old.Usages[at]
		case w.Algorithm == limit.TokenBucket:
			r.Usages[i] = old.bucketStart(&w)
		default:
			r.Usages[i] = Usage{AsOfNs: r.NowNs}
		}
	}
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
func (r *Record) bucketStart(w *limit.Window) (emptiest Usage) {
	emptiest = Usage{AsOfNs: r.NowNs}
	for i, v := range r.Windows {
		u := r.Usages[i]
		if v.Algorithm != limit.TokenBucket || v.PeriodNs != w.PeriodNs || u.IsZero() {
			continue
		}
		if u.Tokens.Hi < 0 {
			u.Tokens = limit.Tokens{}
		}
		clampTo(w, &u)
		if w.Count(&u.Usage, u.AsOfNs) > w.Count(&emptiest.Usage, emptiest.AsOfNs) {
			emptiest = u
		}
	}
	return emptiest
}

// clampTo takes away what a bucket's usage has more than w holds. Roll does so, also if no time passes.
func clampTo(w *limit.Window, u *Usage) { w.Roll(&u.Usage, u.AsOfNs, u.AsOfNs) }

// keepLogs returns the windows, changed so that no log counts fewer units because the definition that asks remembers
// fewer. Each remembers as many as it has, and more where these were admitted: see recordWindow.withWholeLog. arrange
// has put the windows first in the record, so they have its first Usages.
func (r *Record) keepLogs(windows []limit.Window) []limit.Window {
	areCloned := false
	for i := range windows {
		n := len(r.Usages[i].Log)
		if n <= int(windows[i].Units) {
			continue
		}
		if !areCloned {
			windows, areCloned = slices.Clone(windows), true
		}
		windows[i].Units = uint16(n)
	}
	return windows
}

// SpendByNs is until when the units that it has counted may be spent: NowNs, or later if some are leased.
func (r *Record) SpendByNs() int64 {
	spendBy := r.NowNs
	for i := range r.Usages {
		spendBy = max(spendBy, r.Usages[i].spendByNs())
	}
	return spendBy
}

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	// saturated is the highest count: a count that has reached it may stand for more.
	saturated = 1<<32 - 1
)

// minus is a - b, at least 0.
func minus(a, b uint32) uint32 { return a - min(a, b) }
