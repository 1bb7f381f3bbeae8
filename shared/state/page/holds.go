package page

import "github.com/sluice-ratelimit/sluice/shared/limit"

// What a page has of holds: the last column of each record, and of the floor. All functions here but FloorIsHolding are
// of a page that HasHolds. limit.Holds says what an eighth is.
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
//	48  u32  serial of the record that was reset last while it held units, 0 = none: see MayBeForgotten
const (
	offSerial       = 4
	offUnits        = 8
	holdsBytes      = offUnits + (limit.HoldParts+1)*4
	offHoldsSince   = holdsBytes
	offForgotten    = holdsBytes + 4
	holdsFloorBytes = holdsBytes + 8

	// sharesBit, beside a record's serial, says that the floor may hold units of the key.
	sharesBit = 1 << 31
	// firstSerial is the least, and that of records from before the page held.
	firstSerial = 1
)

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

// readSerial returns the serial in the bytes of a record or of the floor.
func readSerial(b []byte) uint32 { return le.Uint32(b[offSerial:]) &^ sharesBit }

// putSerial gives them a serial without sharesBit.
func putSerial(b []byte, n uint32) { le.PutUint32(b[offSerial:], n) }

// holdsOf returns the bytes of what the slot's record holds.
func (p *Page) holdsOf(slot int) []byte { return p.usageOf(slot, p.Layout.holdsColumn())[:holdsBytes] }

// holdsOfFloor returns the bytes of what the floor holds.
func (p *Page) holdsOfFloor() []byte { return p.floorOf(p.Layout.holdsColumn())[:holdsFloorBytes] }

// beginHolds has a page hold that did not.
func (p *Page) beginHolds() {
	le.PutUint32(p.holdsOfFloor()[offHoldsSince:], p.Epoch())
	putSerial(p.holdsOfFloor(), firstSerial)
}

// HoldsSince is the epoch in which the page began to hold: what was held before is gone.
func (p *Page) HoldsSince() uint32 { return le.Uint32(p.holdsOfFloor()[offHoldsSince:]) }

// Holds is what the slot's record holds.
func (p *Page) Holds(slot int) limit.Holds { return readHolds(p.holdsOf(slot)) }

// SetHolds sets what the slot's record holds.
func (p *Page) SetHolds(slot int, h *limit.Holds) { putHolds(p.holdsOf(slot), h) }

// FloorHolds is what the floor holds.
func (p *Page) FloorHolds() limit.Holds { return readHolds(p.holdsOfFloor()) }

// SetFloorHolds sets what the floor holds.
func (p *Page) SetFloorHolds(h *limit.Holds) { putHolds(p.holdsOfFloor(), h) }

// FloorIsHolding reports whether the floor holds anything. It does not in a page without holds.
func (p *Page) FloorIsHolding() bool {
	if !p.Layout.HasHolds() {
		return false
	}
	floor := p.holdsOfFloor()
	held := uint32(0)
	for at := offUnits; at < holdsBytes; at += 4 {
		held |= le.Uint32(floor[at:])
	}
	return held != 0
}

// Shares reports whether the floor may hold units of the slot's key.
func (p *Page) Shares(slot int) bool { return le.Uint32(p.holdsOf(slot)[offSerial:])&sharesBit != 0 }

// MarkShares notes that the slot's key may be one of those whose holds the floor has.
func (p *Page) MarkShares(slot int) {
	serial := p.holdsOf(slot)[offSerial:]
	le.PutUint32(serial, le.Uint32(serial)|sharesBit)
}

// Serial is the serial of the slot's record: how many were placed in the page before, and it.
func (p *Page) Serial(slot int) uint32 { return readSerial(p.holdsOf(slot)) }

// giveSerial gives a record that was placed the next serial. After the largest, serials begin anew, but none is 0:
// MayBeForgotten takes that for no record.
func (p *Page) giveSerial(slot int) {
	n := max((readSerial(p.holdsOfFloor())+1)&^sharesBit, firstSerial)
	putSerial(p.holdsOfFloor(), n)
	putSerial(p.holdsOf(slot), n)
}

// ForgetHolds notes that the slot's record, which holds units, is reset: its holds are not in
// the floor.
func (p *Page) ForgetHolds(slot int) {
	n := p.Serial(slot)
	if !p.MayBeForgotten(n) {
		le.PutUint32(p.holdsOfFloor()[offForgotten:], n)
	}
}

// MayBeForgotten reports whether a record with that serial that is gone may have been reset while it held units.
// Else it was evicted, and the floor has what it held. The page notes only the latest serial that was reset:
//
//	noted  serial  was reset     because
//	0      6       no            none was
//	7      8       no            it was placed after the latest that was
//	7      7       yes
//	7      6       perhaps       the page does not know more of serials before the latest
//	7      2³¹-1   perhaps       it is before 7: after the largest, serials begin anew
//
// As with a sequence number of TCP, a serial is before another if it is less than 2³⁰ behind.
func (p *Page) MayBeForgotten(serial uint32) bool {
	last := le.Uint32(p.holdsOfFloor()[offForgotten:])
	return last != 0 && (last-serial)&^sharesBit < sharesBit/2
}
