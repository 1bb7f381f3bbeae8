// Package page is the bytes of a page: one value in shared data, with the records of a fixed number of keys. It
// knows where each thing lies and how it is written down, but not what follows from it: that is package state's.
//
// Its invariant: released filters read these bytes. What this build cannot read, Read refuses.
//
// A page has slots for records, each the counts of one key, and a floor: what the records that were evicted from the
// page have counted. All integers are little endian:
//
//	 0  u8   format version, 1
//	 1  u8   kind, 1 = page, of counters or of leases
//	 2  u8   slots s
//	 3  u8   windows n
//	 4  u32  epoch of the windows below, from the directory
//	 8  u16  generation in the low 12 bits: incremented when a record is set, reset or rebased; the others 0
//	10  u16  spare, 0
//	12  i64  floor time: the instant as of which the floors stand, 0 = it has never moved
//	20       n × window definition          usage.go
//	         n × floor of that window       usage.go
//	         s × u32 fingerprint: the low bits of the key's hash
//	         s × record
//
// A record:
//
//	 0  u64  time of the last write + 1 ns, 0 = the slot is free
//	 8  u16  low 12 bits generation; bit 12: the key was reset, so the record stays while it counts nothing: without
//	         it the key would start from the floor; the other bits spare, 0
//	10       n × usage of that window       usage.go
//
// layout.go says how many pages of how many slots a table has, and where things lie in one. usage.go has what a page
// has of each window, and holds.go what it has of units that are held. format.go has the version of all this. The
// golden bytes are tested in golden_test.go of package state, which fills pages as the filter does.
package page

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	kindPage = 1

	offVersion    = 0
	offKind       = 1
	offSlots      = 2
	offWindows    = 3
	offEpoch      = 4
	offGeneration = 8
	offSpare      = 10
	offFloorTime  = 12
	headBytes     = 20

	fingerprintBytes = 4
	offRecordFlags   = 8
	recordHeadBytes  = 10 + spareBytes

	resetBit       = 1 << 12
	generationMask = resetBit - 1
)

var le = binary.LittleEndian

// Page is a page, read and changed in place.
type Page struct {
	Bytes  []byte
	Layout *Layout
}

// New returns an empty page.
func New(l *Layout, epoch uint32) Page {
	p := Page{make([]byte, l.size), l}
	p.Bytes[offVersion] = FormatVersion
	p.Bytes[offKind] = kindPage
	p.Bytes[offSlots] = byte(l.Slots)
	p.Bytes[offWindows] = byte(len(l.Windows))
	le.PutUint32(p.Bytes[offEpoch:], epoch)
	for column := range Column(len(l.Windows)) {
		PutWindow(p.definition(column), &l.Windows[column])
	}
	if l.HasHolds() {
		p.beginHolds()
	}
	return p
}

// Read finds out what layout a page has. It is ok if this build can use the page: it knows the format and the
// windows, and the size agrees with the header.
func Read(value []byte) (p Page, ok bool) {
	p.Bytes = value
	if len(value) < headBytes || value[offVersion] != FormatVersion || value[offKind] != kindPage {
		return Page{}, false
	}
	n, slots := int(value[offWindows]), int(value[offSlots])
	if n > MaxWindows || slots == 0 || len(value) < headBytes+n*WindowBytes || !p.headIsSound() {
		return Page{}, false
	}
	windows := make([]limit.Window, n)
	for column := range Column(n) {
		var known bool
		windows[column], known = ReadWindow(p.definition(column))
		if !known {
			return Page{}, false
		}
	}
	p.Layout = NewLayout(windows, slots)
	return p, len(value) == p.Layout.size
}

// ReadLike reads a page without decoding its layout. It is ok if the page has the layout and epoch of p. TinyGo's
// bytes.Equal would allocate.
func (p *Page) ReadLike(value []byte) (same Page, ok bool) {
	if len(value) != len(p.Bytes) {
		return Page{}, false
	}
	same = Page{value, p.Layout}
	sameHead := le.Uint64(value) == le.Uint64(p.Bytes) // to the end of the epoch
	end := p.Layout.definitionsEnd
	return same, sameHead && same.headIsSound() && slices.Equal(value[headBytes:end], p.Bytes[headBytes:end])
}

// headIsSound reports whether the head has no value that nobody writes.
func (p *Page) headIsSound() bool { return le.Uint16(p.Bytes[offSpare:]) == 0 && p.FloorTime() >= 0 }

func (p *Page) definition(column Column) []byte {
	return p.Bytes[headBytes+int(column)*WindowBytes:][:WindowBytes]
}

// Epoch is that of the page's windows.
func (p *Page) Epoch() uint32 { return le.Uint32(p.Bytes[offEpoch:]) }

// FloorTime is the instant as of which the floors stand. It moves when a record goes, or when a floor is charged,
// rebased or has ended.
func (p *Page) FloorTime() int64 { return int64(le.Uint64(p.Bytes[offFloorTime:])) }

// SetFloorTime sets what FloorTime returns.
func (p *Page) SetFloorTime(t int64) { le.PutUint64(p.Bytes[offFloorTime:], uint64(t)) }

func (p *Page) generation() uint16 { return le.Uint16(p.Bytes[offGeneration:]) & generationMask }

// NextGeneration increments the page's generation, which each record that is placed gets.
func (p *Page) NextGeneration() {
	le.PutUint16(p.Bytes[offGeneration:], (p.generation()+1)&generationMask)
}

// Find returns the slot of the key with that fingerprint, or -1. It compares two
// fingerprints at once.
func (p *Page) Find(fingerprint uint32) int {
	prints := p.Bytes[p.Layout.fingerprintsAt:p.Layout.recordsAt]
	wanted := uint64(fingerprint)<<32 | uint64(fingerprint)
	for i := 0; len(prints) >= 2*fingerprintBytes; i += 2 {
		differs := le.Uint64(prints) ^ wanted
		if uint32(differs) == 0 && !p.IsFree(i) {
			return i
		}
		if differs>>32 == 0 && !p.IsFree(i+1) {
			return i + 1
		}
		prints = prints[2*fingerprintBytes:]
	}
	last := p.Layout.Slots - 1 // one is left where the number of slots is odd
	if len(prints) > 0 && le.Uint32(prints) == fingerprint && !p.IsFree(last) {
		return last
	}
	return -1
}

// FreeSlot returns a slot without a record, or -1.
func (p *Page) FreeSlot() int {
	for slot := range p.Layout.Slots {
		if p.IsFree(slot) {
			return slot
		}
	}
	return -1
}

// IsFree reports whether the slot has no record.
func (p *Page) IsFree(slot int) bool { return p.Time(slot) == -1 }

// Place puts an empty record into the slot, written at that time, for the key with that fingerprint. It takes the place
// of what is there.
func (p *Page) Place(slot int, fingerprint uint32, time int64) {
	p.Clear(slot)
	p.SetTime(slot, time)
	le.PutUint32(p.Bytes[p.Layout.fingerprintsAt+slot*fingerprintBytes:], fingerprint)
	p.setGeneration(slot)
	if p.Layout.HasHolds() {
		p.giveSerial(slot)
	}
}

// Clear frees the slot.
func (p *Page) Clear(slot int) { clear(p.record(slot)) }

func (p *Page) record(slot int) []byte {
	offset := p.Layout.recordsAt + slot*p.Layout.recordBytes
	return p.Bytes[offset : offset+p.Layout.recordBytes]
}

// Time returns when the slot's record was last written, -1 if the slot is free.
func (p *Page) Time(slot int) int64 {
	return readTime(p.Bytes[p.Layout.recordsAt+slot*p.Layout.recordBytes:])
}

func readTime(record []byte) int64 { return int64(le.Uint64(record) - 1) }

// NewestTime returns when the newest of the records was written, or the floor if that is newer.
func (p *Page) NewestTime() int64 {
	newest := p.FloorTime()
	records := p.Bytes[p.Layout.recordsAt:]
	for at := 0; at < len(records); at += p.Layout.recordBytes {
		newest = max(newest, readTime(records[at:])) // -1 of a free slot
	}
	return newest
}

// SetTime sets what Time returns.
func (p *Page) SetTime(slot int, t int64) { le.PutUint64(p.record(slot), uint64(t)+1) }

func (p *Page) flags(slot int) uint16 { return le.Uint16(p.record(slot)[offRecordFlags:]) }

func (p *Page) setFlags(slot int, flags uint16) {
	le.PutUint16(p.record(slot)[offRecordFlags:], flags)
}

// Generation is that of the slot's record.
func (p *Page) Generation(slot int) uint16 { return p.flags(slot) & generationMask }

// BeginGeneration gives the slot's record a new generation: no hit from before is refunded from it.
func (p *Page) BeginGeneration(slot int) {
	p.NextGeneration()
	p.setGeneration(slot)
}

// setGeneration gives the slot's record the page's generation.
func (p *Page) setGeneration(slot int) { p.setFlags(slot, p.flags(slot)&resetBit|p.generation()) }

// WasReset reports whether the slot's record says that the key was reset. It may have counted something since.
func (p *Page) WasReset(slot int) bool { return p.flags(slot)&resetBit != 0 }

// MarkReset has the slot's record say that the key was reset.
func (p *Page) MarkReset(slot int) { p.setFlags(slot, p.flags(slot)|resetBit) }

// Lease returns the bytes of the slot's lease.
func (p *Page) Lease(slot int) []byte { return p.record(slot)[recordHeadBytes:] }

// Clone returns a copy that may be changed by itself.
func (p *Page) Clone() Page { return Page{bytes.Clone(p.Bytes), p.Layout} }

// A policy may change the windows of a table. Its pages stay as they are until somebody reads them: then each is
// converted to the windows that the table has now.

// Convert returns the page in another layout. Windows that both have keep their usage, new ones start empty, and
// the others are dropped. A record's serial lies in its column of holds: if both layouts have one, it is copied with
// that, and if only the new one does, each record gets firstSerial.
func (p *Page) Convert(to *Layout, epoch uint32) Page {
	out := New(to, epoch)
	from := p.Layout
	le.PutUint16(out.Bytes[offGeneration:], p.generation())
	out.SetFloorTime(p.FloorTime())
	slots := min(from.Slots, to.Slots) // they differ only if the page is damaged: a table keeps its geometry
	for slot := range slots {
		if p.IsFree(slot) {
			continue
		}
		fingerprint := p.Bytes[from.fingerprintsAt+slot*fingerprintBytes:][:fingerprintBytes]
		copy(out.Bytes[to.fingerprintsAt+slot*fingerprintBytes:], fingerprint)
		copy(out.record(slot), p.record(slot)[:recordHeadBytes])
		switch {
		case to.HasLeases && from.HasLeases:
			copy(out.Lease(slot), p.Lease(slot))
		case to.HasHolds() && from.HasHolds():
			out.takeHolds(out.holdsOf(slot), p, p.holdsOf(slot))
		case to.HasHolds():
			putSerial(out.holdsOf(slot), firstSerial)
		}
	}
	if to.HasHolds() && from.HasHolds() {
		out.takeHolds(out.holdsOfFloor(), p, p.holdsOfFloor())
	}
	for column := range to.Counting {
		source := from.ColumnOf(to.Windows[column])
		if source == NoColumn {
			continue
		}
		out.SetFloor(column, p.Floor(source))
		for slot := range slots {
			if !p.IsFree(slot) {
				out.takeUsage(slot, column, p, source)
			}
		}
	}
	return out
}

// takeUsage copies a slot's usage of old's column source.
func (p *Page) takeUsage(slot int, column Column, old *Page, source Column) {
	var u limit.Usage
	old.ReadUsage(slot, source, nil, &u)
	u = fitLog(u, int(p.Layout.Windows[column].Units))
	p.SetUsage(slot, column, &u)
}

// takeHolds copies what is held in a record or the floor of old.
func (p *Page) takeHolds(to []byte, old *Page, from []byte) {
	copy(to, from)
	h := readHolds(from)
	h.Scale(old.Layout.HoldsWindow, p.Layout.HoldsWindow)
	putHolds(to, &h)
}

// fitLog fits u's log into that many units. If there is room again for units that
// were dropped, copies of the oldest unit take their place, so that the key gains
// no quota.
func fitLog(u limit.Usage, units int) limit.Usage {
	if drop := len(u.Log) - units; drop > 0 {
		u.Log = u.Log[drop:]
		u.Cut = true
	}
	for u.Cut && len(u.Log) > 0 && len(u.Log) < units {
		u.Log = append(u.Log[:1:1], u.Log...) // of capacity 1: append must not write over the second
	}
	return u
}
