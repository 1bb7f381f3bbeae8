package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// usageBytes is the size of a window's usage in a record, and of its floor; both
// are 0 for an algorithm that this build does not know.
func usageBytes(w limit.Window) (usage, floor int) {
	switch w.Algorithm {
	case limit.FixedWindow:
		if w.Jitter > 0 {
			return 12, 12
		}
		return 4, 4
	case limit.Calendar:
		return 4, 4
	case limit.FixedWindowPerKey:
		return 12, 12
	case limit.SlidingWindowLog:
		return 2 + int(w.Units)*unitBytes, 12
	case limit.SlidingWindowCounter:
		return 8, 8
	case limit.TokenBucket:
		return 20, 16
	case limit.Concurrency:
		return heldBytes, heldFloorBytes
	case algorithmLease:
		return leaseBytes + int(w.Units)*standingBytes, 0
	}
	return 0, 0
}

// usage returns the usage of window i in the slot's record. A log is decoded into
// log.
func (b page) usage(l *Layout, slot, i int, log []int64) (u limit.Usage) {
	b.read(l, slot, i, log, &u)
	return u
}

// read is usage into u.
func (b page) read(l *Layout, slot, i int, log []int64, u *limit.Usage) {
	w, p := &l.Windows[i], b.record(l, slot)[recordHeadBytes+l.usages[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		*u = limit.Usage{
			Log: readLog(p, b.time(l, slot), int(w.Units), log),
			Cut: le.Uint16(p)&cutBit != 0,
		}
	case limit.TokenBucket:
		*u = limit.Usage{
			Tokens: limit.Tokens{Lo: le.Uint64(p), Hi: int64(int32(le.Uint32(p[8:])))},
			EndNs:  int64(le.Uint64(p[12:])),
		}
	case limit.Concurrency:
		h := b.held(l, slot)
		*u = limit.Usage{Used: h.Total()}
	default:
		readCounts(w, p, u)
	}
}

func (b page) setUsage(l *Layout, slot, i int, u *limit.Usage) {
	w, p := &l.Windows[i], b.record(l, slot)[recordHeadBytes+l.usages[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		putLog(p, u)
	case limit.TokenBucket:
		le.PutUint64(p, u.Tokens.Lo)
		le.PutUint32(p[8:], uint32(u.Tokens.Hi))
		le.PutUint64(p[12:], uint64(u.EndNs))
	default:
		putCounts(w, p, u)
	}
}

// floor returns the page's floor of window i; see limit.Window.Floor.
func (b page) floor(l *Layout, i int) (f limit.Usage) {
	w, p := &l.Windows[i], b[l.floors[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return limit.Usage{Used: le.Uint32(p), EndNs: int64(le.Uint64(p[4:]))}
	case limit.TokenBucket:
		return limit.Usage{Used: le.Uint32(p), Prev: le.Uint32(p[4:]), EndNs: int64(le.Uint64(p[8:]))}
	default:
		readCounts(w, p, &f)
		return f
	}
}

func (b page) setFloor(l *Layout, i int, f limit.Usage) {
	w, p := &l.Windows[i], b[l.floors[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		le.PutUint32(p, f.Used)
		le.PutUint64(p[4:], uint64(f.EndNs))
	case limit.TokenBucket:
		le.PutUint32(p, f.Used)
		le.PutUint32(p[4:], f.Prev)
		le.PutUint64(p[8:], uint64(f.EndNs))
	default:
		putCounts(w, p, &f)
	}
}

// readCounts reads a usage that is stored alike in records and floors.
func readCounts(w *limit.Window, p []byte, u *limit.Usage) {
	*u = limit.Usage{Used: le.Uint32(p)}
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		u.Prev = le.Uint32(p[4:])
	case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
		end := le.Uint64(p[4:])
		u.EndNs, u.Slides = int64(end&^slidesBit), end&slidesBit != 0
	}
}

func putCounts(w *limit.Window, p []byte, u *limit.Usage) {
	le.PutUint32(p, u.Used)
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		le.PutUint32(p[4:], u.Prev)
	case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
		end := uint64(u.EndNs)
		if u.Slides {
			end |= slidesBit
		}
		le.PutUint64(p[4:], end)
	}
}

// readLog decodes a log written at last into log. No unit is newer than last or
// more than 2⁵⁶ ns older, so the low 56 bits are enough to restore its time.
func readLog(p []byte, last int64, maxUnits int, log []int64) []int64 {
	log = log[:0]
	for i := range min(int(le.Uint16(p)&^cutBit), maxUnits) {
		at := 2 + i*unitBytes
		low := uint64(le.Uint32(p[at:])) | uint64(le.Uint16(p[at+4:]))<<32 | uint64(p[at+6])<<48
		log = append(log, last-int64((uint64(last)-low)&unitMask))
	}
	return log
}

func putLog(p []byte, u *limit.Usage) {
	units := uint16(len(u.Log))
	if u.Cut {
		units |= cutBit
	}
	le.PutUint16(p, units)
	for i, t := range u.Log {
		at := 2 + i*unitBytes
		le.PutUint32(p[at:], uint32(t))
		le.PutUint16(p[at+4:], uint16(t>>32))
		p[at+6] = byte(t >> 48)
	}
}

const (
	heldBytes = 8 + (limit.HoldParts+1)*4
	// The floor has beside that: since which epoch the page holds, and the number up to
	// which records that are gone may have been reset.
	offSince       = heldBytes
	offForgotten   = heldBytes + 4
	heldFloorBytes = heldBytes + 8
	// sharesBit, in a record's number, says that the page's floor may hold units of the key.
	sharesBit = 1 << 31
	// firstNumber is that of records from before the page held.
	firstNumber = 1
	// ofFloor stands for the floor in the place of a slot.
	ofFloor = -1
)

// heldOf returns the bytes of what a slot, or the floor, holds.
func (b page) heldOf(l *Layout, slot int) []byte {
	if slot == ofFloor {
		return b[l.floors[l.counts]:][:heldFloorBytes]
	}
	return b.record(l, slot)[recordHeadBytes+l.usages[l.counts]:]
}

func (b page) held(l *Layout, slot int) (h limit.Held) {
	p := b.heldOf(l, slot)
	h.Eighth = le.Uint32(p)
	for i := range h.Units {
		h.Units[i] = le.Uint32(p[8+4*i:])
	}
	return h
}

func (b page) setHeld(l *Layout, slot int, h *limit.Held) {
	p := b.heldOf(l, slot)
	le.PutUint32(p, h.Eighth)
	for i, n := range h.Units {
		le.PutUint32(p[8+4*i:], n)
	}
}

// number is the number of the slot's record; with ofFloor, of the record placed last.
func (b page) number(l *Layout, slot int) uint32 { return le.Uint32(b.heldOf(l, slot)[4:]) }

func (b page) setNumber(l *Layout, slot int, n uint32) { le.PutUint32(b.heldOf(l, slot)[4:], n) }

// numberRecord numbers a record that was placed. shares says that the key may be one of
// those whose holds the floor has.
func (b page) numberRecord(l *Layout, slot int, shares bool) {
	n := (b.number(l, ofFloor) + 1) &^ sharesBit
	b.setNumber(l, ofFloor, n)
	if shares {
		n |= sharesBit
	}
	b.setNumber(l, slot, n)
}

func (b page) shares(l *Layout, slot int) bool { return b.number(l, slot)&sharesBit != 0 }

// since is the epoch in which the page began to hold: what was held before is gone.
func (b page) since(l *Layout) uint32 { return le.Uint32(b.heldOf(l, ofFloor)[offSince:]) }

// forget notes that the slot's record, which holds units, is reset: nobody may look for
// them in the floor.
func (b page) forget(l *Layout, slot int) {
	if n := b.number(l, slot) &^ sharesBit; !b.mayBeForgotten(l, n) {
		le.PutUint32(b.heldOf(l, ofFloor)[offForgotten:], n)
	}
}

// mayBeForgotten reports whether a record with that number which is gone may have been
// reset, instead of evicted. Of those before the last one that was, it is not known.
func (b page) mayBeForgotten(l *Layout, number uint32) bool {
	last := le.Uint32(b.heldOf(l, ofFloor)[offForgotten:])
	return last != 0 && (last-number)&^sharesBit < sharesBit/2
}

// beginHolds has a page hold that did not.
func (b page) beginHolds(l *Layout) {
	le.PutUint32(b.heldOf(l, ofFloor)[offSince:], b.epoch())
	b.setNumber(l, ofFloor, firstNumber)
}

// moveHeld copies what is held from a page of another layout.
func (b page) moveHeld(l *Layout, slot int, old page, from *Layout, oldSlot int) {
	copy(b.heldOf(l, slot), old.heldOf(from, oldSlot))
	h := old.held(from, oldSlot)
	h.Scale(&from.Windows[from.counts], &l.Windows[l.counts])
	b.setHeld(l, slot, &h)
}
