package page

import "github.com/sluice-ratelimit/sluice/shared/limit"

// What a page has of holds: the last column of each record, and of the floor. limit.Holds says what an eighth is.
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
	offHoldsSince   = holdsBytes
	offForgotten    = holdsBytes + 4
	holdsFloorBytes = holdsBytes + 8

	// sharesBit, in a record's number, says that the floor may hold units of the key.
	sharesBit = 1 << 31
	// firstNumber is that of records from before the page held.
	firstNumber = 1
)

// holdsOf returns the bytes of what the slot's record holds.
func (p *Page) holdsOf(slot int) []byte { return p.usageOf(slot, p.Layout.HoldsColumn()) }

// floorHolds returns the bytes of what the floor holds.
func (p *Page) floorHolds() []byte {
	return p.Bytes[p.Layout.floorAt[p.Layout.HoldsColumn()]:][:holdsFloorBytes]
}

// Holds is what the slot's record holds.
func (p *Page) Holds(slot int) limit.Holds { return readHolds(p.holdsOf(slot)) }

// SetHolds sets what the slot's record holds.
func (p *Page) SetHolds(slot int, h *limit.Holds) { putHolds(p.holdsOf(slot), h) }

// FloorHolds is what the floor holds.
func (p *Page) FloorHolds() limit.Holds { return readHolds(p.floorHolds()) }

// SetFloorHolds sets what the floor holds.
func (p *Page) SetFloorHolds(h *limit.Holds) { putHolds(p.floorHolds(), h) }

func readHolds(b []byte) (h limit.Holds) {
	h.Eighth = le.Uint32(b)
	for i := range h.Units {
		h.Units[i] = le.Uint32(b[offUnits+4*i:])
	}
	return h
}

func putHolds(b []byte, h *limit.Holds) {
	le.PutUint32(b, h.Eighth)
	for i, n := range h.Units {
		le.PutUint32(b[offUnits+4*i:], n)
	}
}

func readNumber(b []byte) uint32   { return le.Uint32(b[offNumber:]) &^ sharesBit }
func putNumber(b []byte, n uint32) { le.PutUint32(b[offNumber:], n) }

// Number is the number of the slot's record.
func (p *Page) Number(slot int) uint32 { return readNumber(p.holdsOf(slot)) }

// numberRecord numbers a record that was placed.
func (p *Page) numberRecord(slot int) {
	n := (readNumber(p.floorHolds()) + 1) &^ sharesBit
	putNumber(p.floorHolds(), n)
	putNumber(p.holdsOf(slot), n)
}

// Shares reports whether the floor may hold units of the slot's key.
func (p *Page) Shares(slot int) bool { return le.Uint32(p.holdsOf(slot)[offNumber:])&sharesBit != 0 }

// MarkShares notes that the slot's key may be one of those whose holds the floor has.
func (p *Page) MarkShares(slot int) { putNumber(p.holdsOf(slot), p.Number(slot)|sharesBit) }

// HoldsSince is the epoch in which the page began to hold: what was held before is gone.
func (p *Page) HoldsSince() uint32 { return le.Uint32(p.floorHolds()[offHoldsSince:]) }

// beginHolds has a page hold that did not.
func (p *Page) beginHolds() {
	le.PutUint32(p.floorHolds()[offHoldsSince:], p.Epoch())
	putNumber(p.floorHolds(), firstNumber)
}

// ForgetHolds notes that the slot's record, which holds units, is reset: its holds are not in
// the floor.
func (p *Page) ForgetHolds(slot int) {
	n := p.Number(slot)
	if !p.MayBeForgotten(n) {
		le.PutUint32(p.floorHolds()[offForgotten:], n)
	}
}

// MayBeForgotten reports whether a record with that number that is gone may have been
// reset instead of evicted. The page only notes the last record that was, so this is not
// known of those before it. Numbers begin anew after the largest: a number is before last if it
// is less than half of all numbers behind it. For example, last is 5: then 3 is, and also the largest number, because
// it is 6 behind. 8 is not.
func (p *Page) MayBeForgotten(number uint32) bool {
	last := le.Uint32(p.floorHolds()[offForgotten:])
	return last != 0 && (last-number)&^sharesBit < sharesBit/2
}
