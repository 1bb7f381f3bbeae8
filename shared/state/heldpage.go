package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

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
