package state

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A hold lapses when its stream has not been known to run for eight whole eighths:
//
//	|  k  | k+1 |  ...  | k+8 | k+9 |
//	|---↑-|-----|- ... -|-----↑-----|
//	    renewed last          lapsedAt(k)
//
// The eighths are of a clock of their own, which is at the end of this file. A worker may find much later that a hold
// has lapsed, and charges the units as of lapsedAt(k) then. Who charges what, in entry.go and evict.go:
//
//	the units were held by   who takes them out   to what they are charged
//	the key's record         readHolds            its usage: readRecord
//	the floor                lapseFloor           the floor, and each record whose key may have held them, which
//	                                              evictSharer evicts: chargeFloorLapses
//	a record to evict        moveHoldsToFloor     its usage, before that is added to the floor: countedIn
//	any record               countsUntil          a copy of its usage, which tells when the record expires: countedIn

// lapse is units whose hold no stream has renewed in time.
type lapse struct {
	at    int64 // when they lapsed, by the clock of the windows
	units uint32
}

// lapses are what has lapsed of some holds, the earliest first. All lists of a page lie in timedPage.lapses, one
// behind the other: takeLapsed and joinLapses append to it and return what they have appended, which nobody changes.
// readClocks empties it, when the next page is read.
type lapses []lapse

// noBound is for takeLapsed of the floor, which does not know when its holds were written.
const noBound int64 = 0

// takeLapsed removes from h the units that have lapsed by the present, and returns them.
// last is when h was written, or noBound: no unit lapses before that.
func (p *timedPage) takeLapsed(h *limit.Holds, last int64) lapses {
	present := p.presentEighth()
	all := &p.lapses
	first := len(*all)
	for {
		eighth, units, ok := h.Lapse(present)
		if !ok {
			return (*all)[first:]
		}
		*all = append(*all, lapse{max(last, p.lapsedAt(eighth)), units})
	}
}

// lapsedAt is when what was held in an eighth lapses, by the clock of the windows: when the ninth eighth
// after it begins. The present eighth began holdNs%each ago.
func (p *timedPage) lapsedAt(eighth uint32) int64 {
	each := p.page.Layout.HoldsWindow.EighthNs()
	ninth := eighth + limit.HoldParts + 1
	since := int64(int32(p.presentEighth() - ninth)) // how many eighths ago that one began
	return p.CallerNs - int64(p.holdNs)%each - since*each
}

// charge charges each lapse in turn, at its instant, to u, which was written at last. It
// returns the instant of u afterwards. w has the key's limits.
func (ls lapses) charge(w *limit.Window, u *limit.Usage, last int64) int64 {
	for _, l := range ls {
		w.Roll(u, last, l.at)
		w.Add(u, l.at, l.units)
		last = l.at
	}
	return last
}

// joinLapses returns both lists as one, the earliest first. Of others no unit lapses before last.
func (p *timedPage) joinLapses(ls, others lapses, last int64) lapses {
	all := &p.lapses
	first := len(*all)
	*all = append(*all, ls...)
	for _, l := range others {
		*all = append(*all, lapse{max(l.at, last), l.units})
	}
	joined := (*all)[first:]
	slices.SortStableFunc(joined, func(a, b lapse) int { return cmp.Compare(a.at, b.at) })
	return joined
}

// presentEighth is the eighth of the holds' clock as of Read. That clock is read after the page, so what the page
// holds is of no later eighth, unless the hold's length was changed: see limit.Holds.Scale.
func (p *timedPage) presentEighth() uint32 {
	return eighthAt(p.holdNs, p.page.Layout.HoldsWindow.EighthNs())
}

// eighthAt is the eighth of that length in which an instant lies.
func eighthAt(holdNs HoldTime, eachNs int64) uint32 { return uint32(int64(holdNs) / eachNs) }

// readHoldClock reads the holds' clock, if the page holds.
func (t *Table) readHoldClock(p *timedPage) {
	switch {
	case !p.page.Layout.HasHolds():
	case p.readOnly:
		p.holdNs = t.parent.lookHoldClock()
	default:
		p.holdNs = t.parent.HoldClock()
	}
}

// The holds' clock is one for all workers: the monotonic clock without the time in which
// the process stood still, because no stream could renew its hold then. It is one value in
// shared data, little endian:
//
//	0  i64  when some worker last read it, by the monotonic clock
//	8  i64  how long the process stood still in all
const (
	holdClockBytes = 16
	// readEveryNs is how often a worker tells the others that the process runs.
	readEveryNs = 500_000_000
	// stoodStillNs is the longest gap between two readings that counts as running.
	stoodStillNs = 2_000_000_000
	// holdSinceNs is what the holds' clock says when the monotonic one says 0: a hold that
	// begins then has eighths before it.
	holdSinceNs = 2 * limit.MaxPeriodNs
)

// HoldClock reads the holds' clock. If no worker has read it for readEveryNs, it writes down that this one has: so the
// process runs.
func (ts *Tables) HoldClock() HoldTime {
	now := ts.store.Monotonic()
	if ts.holdReading.isOld(now) {
		ts.holdReading.share(ts.store, now)
	}
	return ts.holdReading.at(now)
}

// lookHoldClock is HoldClock without a trace.
func (ts *Tables) lookHoldClock() HoldTime {
	now, clock := ts.store.Monotonic(), ts.holdReading
	if clock.isOld(now) {
		value, _, status := ts.store.Get(holdClockKey)
		if status == OK {
			clock.read(value, now)
		}
	}
	return clock.at(now)
}

// holdReading is the holds' clock as this worker has read it.
type holdReading struct {
	readNs  int64 // when some worker last read it, by the monotonic clock
	stoodNs int64 // how long the process stood still in all
	memory  [holdClockBytes]byte
}

func (c *holdReading) isOld(now int64) bool { return now-c.readNs >= readEveryNs }

// at is what the clock says when the monotonic one says now.
func (c *holdReading) at(now int64) HoldTime { return HoldTime(holdSinceNs + now - c.stoodNs) }

// share tells the other workers that the process runs, and adds the time since
// the last of them has said so if it is too long.
func (c *holdReading) share(store Store, now int64) {
	for range MaxRetries { // not Update, whose change TinyGo would allocate
		value, cas, status := store.Get(holdClockKey)
		c.readNs = now
		switch status {
		case OK:
			c.read(value, now)
		case NotFound:
			cas = CreateOnly
		default:
			return
		}
		next := le.AppendUint64(c.memory[:0], uint64(c.readNs))
		next = le.AppendUint64(next, uint64(c.stoodNs))
		if store.Set(holdClockKey, next, cas) != Mismatch {
			return
		}
	}
}

// read takes over what another worker has shared, and adds the time since then if it is too long. It takes nothing
// from a value that it cannot read.
func (c *holdReading) read(value []byte, now int64) {
	if len(value) != holdClockBytes {
		return
	}
	read := int64(le.Uint64(value))
	c.readNs = max(now, read)
	c.stoodNs = int64(le.Uint64(value[8:])) + max(0, now-read-stoodStillNs)
}
