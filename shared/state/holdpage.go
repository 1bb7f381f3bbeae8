package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// What a page has of holds: the last column of each record, and of the floor.
//
// A record's column, little endian:
//
//	0  u32  newest eighth
//	4  u32  number of the record in its page; top bit: the floor may hold units of the key
//	8       9 × u32 units
//
// The floor's:
//
//	 0  u32  newest eighth
//	 4  u32  number of the record that was placed last
//	 8       9 × u32 units
//	44  u32  epoch in which the page began to hold
//	48  u32  number up to which records that are gone may have been reset, 0 = none
const (
	offNumber       = 4
	offUnits        = 8
	holdsBytes      = offUnits + (limit.HoldParts+1)*4
	offSince        = holdsBytes
	offForgotten    = holdsBytes + 4
	holdsFloorBytes = holdsBytes + 8

	// sharesBit, in a record's number, says that the floor may hold units of the key.
	sharesBit = 1 << 31
	// firstNumber is that of records from before the page held.
	firstNumber = 1
	// ofFloor means the floor where a slot is asked for. A key without a record has this slot: it starts from the floor.
	ofFloor = -1
)

// holdsOf returns the bytes of what a slot, or the floor, holds.
func (b page) holdsOf(l *Layout, slot int) []byte {
	if slot == ofFloor {
		return b[l.floorAt[l.counting]:][:holdsFloorBytes]
	}
	return b.usageOf(l, slot, l.counting)
}

// holds reads what the slot's record holds, or the floor.
func (b page) holds(l *Layout, slot int) (h limit.Holds) {
	p := b.holdsOf(l, slot)
	h.Eighth = le.Uint32(p)
	for i := range h.Units {
		h.Units[i] = le.Uint32(p[offUnits+4*i:])
	}
	return h
}

func (b page) setHolds(l *Layout, slot int, h *limit.Holds) {
	p := b.holdsOf(l, slot)
	le.PutUint32(p, h.Eighth)
	for i, n := range h.Units {
		le.PutUint32(p[offUnits+4*i:], n)
	}
}

// number is the number of the slot's record; with ofFloor, of the record placed last.
func (b page) number(l *Layout, slot int) uint32 {
	return le.Uint32(b.holdsOf(l, slot)[offNumber:]) &^ sharesBit
}

// shares reports whether the floor may hold units of the slot's key.
func (b page) shares(l *Layout, slot int) bool {
	return le.Uint32(b.holdsOf(l, slot)[offNumber:])&sharesBit != 0
}

func (b page) setNumber(l *Layout, slot int, n uint32) {
	le.PutUint32(b.holdsOf(l, slot)[offNumber:], n)
}

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

// since is the epoch in which the page began to hold: what was held before is gone.
func (b page) since(l *Layout) uint32 { return le.Uint32(b.holdsOf(l, ofFloor)[offSince:]) }

// beginHolds has a page hold that did not.
func (b page) beginHolds(l *Layout) {
	le.PutUint32(b.holdsOf(l, ofFloor)[offSince:], b.epoch())
	b.setNumber(l, ofFloor, firstNumber)
}

// forget notes that the slot's record, which holds units, is reset: its holds are not in
// the floor.
func (b page) forget(l *Layout, slot int) {
	n := b.number(l, slot)
	if !b.mayBeForgotten(l, n) {
		le.PutUint32(b.holdsOf(l, ofFloor)[offForgotten:], n)
	}
}

// mayBeForgotten reports whether a record with that number that is gone may have been
// reset instead of evicted. The page only notes the last record that was, so this is not
// known of those before it. Numbers begin anew after the largest: a number is before last if it
// is less than half of all numbers behind it. For example, last is 5: then 3 is, and also the largest number, because
// it is 6 behind. 8 is not.
func (b page) mayBeForgotten(l *Layout, number uint32) bool {
	last := le.Uint32(b.holdsOf(l, ofFloor)[offForgotten:])
	return last != 0 && (last-number)&^sharesBit < sharesBit/2
}

// convertHolds copies what is held in a slot, or the floor, from a page of another layout.
func (b page) convertHolds(l *Layout, slot int, old page, from *Layout) {
	copy(b.holdsOf(l, slot), old.holdsOf(from, slot))
	h := old.holds(from, slot)
	h.Scale(&from.Windows[from.counting], &l.Windows[l.counting])
	b.setHolds(l, slot, &h)
}
