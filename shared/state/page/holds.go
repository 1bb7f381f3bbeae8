package page

import "github.com/sluice-ratelimit/sluice/shared/limit"

// What a page has of holds: the last column of each record, and of the floor. limit.Holds says what an eighth is.
//
// A record's column, little endian:
//
//	0  u32  newest eighth
//	4  u32  serial of the record in its page; top bit: the floor may hold units of the key
//	8       9 × u32 units
//
// The floor's:
//
//	 0  u32  newest eighth
//	 4  u32  serial of the record that was placed last
//	 8       9 × u32 units
//	44  u32  epoch in which the page began to hold
//	48  u32  serial up to which records that are gone may have been reset, 0 = none
const (
	offSerial       = 4
	offUnits        = 8
	holdsBytes      = offUnits + (limit.HoldParts+1)*4
	offHoldsSince   = holdsBytes
	offForgotten    = holdsBytes + 4
	holdsFloorBytes = holdsBytes + 8

	// sharesBit, beside a record's serial, says that the floor may hold units of the key.
	sharesBit = 1 << 31
	// firstSerial is that of records from before the page held.
	firstSerial = 1
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

// FloorHoldsUnits reports whether the floor holds anything.
func (p *Page) FloorHoldsUnits() bool {
	floor := p.floorHolds()
	held := uint32(0)
	for at := offUnits; at < holdsBytes; at += 4 {
		held |= le.Uint32(floor[at:])
	}
	return held != 0
}

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

func readSerial(b []byte) uint32   { return le.Uint32(b[offSerial:]) &^ sharesBit }
func putSerial(b []byte, n uint32) { le.PutUint32(b[offSerial:], n) }

// Serial is the serial of the slot's record: how many were placed in the page before, and it.
func (p *Page) Serial(slot int) uint32 { return readSerial(p.holdsOf(slot)) }

// giveSerial gives a record that was placed the next serial.
func (p *Page) giveSerial(slot int) {
	n := (readSerial(p.floorHolds()) + 1) &^ sharesBit
	putSerial(p.floorHolds(), n)
	putSerial(p.holdsOf(slot), n)
}

// Shares reports whether the floor may hold units of the slot's key.
func (p *Page) Shares(slot int) bool { return le.Uint32(p.holdsOf(slot)[offSerial:])&sharesBit != 0 }

// MarkShares notes that the slot's key may be one of those whose holds the floor has.
func (p *Page) MarkShares(slot int) { putSerial(p.holdsOf(slot), p.Serial(slot)|sharesBit) }

// HoldsSince is the epoch in which the page began to hold: what was held before is gone.
func (p *Page) HoldsSince() uint32 { return le.Uint32(p.floorHolds()[offHoldsSince:]) }

// beginHolds has a page hold that did not.
func (p *Page) beginHolds() {
	le.PutUint32(p.floorHolds()[offHoldsSince:], p.Epoch())
	putSerial(p.floorHolds(), firstSerial)
}

// ForgetHolds notes that the slot's record, which holds units, is reset: its holds are not in
// the floor.
func (p *Page) ForgetHolds(slot int) {
	n := p.Serial(slot)
	if !p.MayBeForgotten(n) {
		le.PutUint32(p.floorHolds()[offForgotten:], n)
	}
}

// MayBeForgotten reports whether a record with that serial that is gone may have been reset instead of evicted: the
// page only notes the last one that was, so of those before it this is not known. Like a sequence number of TCP, a
// serial is before another if it is at most 2³⁰ behind, also where they begin anew after the largest.
func (p *Page) MayBeForgotten(serial uint32) bool {
	last := le.Uint32(p.floorHolds()[offForgotten:])
	return last != 0 && (last-serial)&^sharesBit < sharesBit/2
}
