package state

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A page is one value in shared data. It has a fixed number of slots for records, each
// the counts of one key, and a floor: what the records that were evicted from the page
// have counted. All integers are little endian:
//
//	 0  u8   format version, 1
//	 1  u8   kind of the records, 1 = counters of one proxy
//	 2  u8   slots s
//	 3  u8   windows n
//	 4  u32  epoch of the windows below, from the directory
//	 8  u16  generation in the low 12 bits: incremented when a record is set, reset or rebased; the others 0
//	10  u16  spare, 0
//	12  i64  floor time: when a record or the floor of a window was last removed, 0 = never
//	20       n × window definition, see definition.go
//	         n × floor of that window, see usage.go
//	         s × u32 fingerprint: the low bits of the key's hash
//	         s × record
//
// A record:
//
//	 0  u64  time of the last write + 1 ns, 0 = the slot is free
//	 8  u16  low 12 bits generation; bit 12: the key was reset and starts from
//	         nothing instead of the floor; the other bits spare, 0
//	10       n × usage of that window, see usage.go
const (
	kindCounters = 1

	offVersion    = 0
	offKind       = 1
	offSlots      = 2
	offWindows    = 3
	offEpoch      = 4
	offGeneration = 8
	offSpare      = 10
	offFloorTime  = 12
	headBytes     = 20
	windowBytes   = 20

	fingerprintBytes    = 4
	offRecordGeneration = 8
	recordHeadBytes     = 10 + spareBytes

	resetBit       = 1 << 12
	generationMask = resetBit - 1
)

// MaxWindows is how many windows a table has at most.
const MaxWindows = 16

// Layout is where things lie in a page with the given windows, which are the columns of
// its records. All offsets and sizes are in bytes.
type Layout struct {
	Slots   int
	Windows []limit.Window // without their limits

	usageAt        [MaxWindows]int // offset of each window's usage in a record, after its head
	floorAt        [MaxWindows]int // offset of each window's floor in the page
	floorsAt       int
	fingerprintsAt int
	recordsAt      int
	recordBytes    int
	size           int

	counting  int  // columns that count; they come first
	hasHolds  bool // the column after them is a Concurrency, see hold.go
	hasLeases bool // the only column is a lease, see lease.go
}

// NewLayout returns the layout of pages with that many slots.
func NewLayout(windows []limit.Window, slots int) Layout {
	l := Layout{Slots: slots, Windows: windows}
	l.counting = len(windows)
	if n := len(windows); n > 0 {
		last := windows[n-1].Algorithm
		l.hasHolds = last == limit.Concurrency
		l.hasLeases = last == algorithmLease
		if l.hasHolds || l.hasLeases {
			l.counting--
		}
	}
	l.floorsAt = headBytes + len(windows)*windowBytes
	usageAt, floorAt := 0, l.floorsAt
	for column := range windows {
		l.usageAt[column] = usageAt
		l.floorAt[column] = floorAt
		usage, floor := usageBytes(&windows[column])
		usageAt += usage
		floorAt += floor
	}
	l.fingerprintsAt = floorAt
	l.recordsAt = l.fingerprintsAt + slots*fingerprintBytes
	l.recordBytes = recordHeadBytes + usageAt
	l.size = l.recordsAt + slots*l.recordBytes
	return l
}

// ValueBytes is the size of a page in bytes.
func (l *Layout) ValueBytes() int { return l.size }

var le = binary.LittleEndian

// page is the bytes of a page, read and changed in place.
type page []byte

// newPage returns an empty page.
func newPage(l *Layout, epoch uint32) page {
	b := page(make([]byte, l.size))
	b[offVersion] = formatVersion
	b[offKind] = kindCounters
	b[offSlots] = byte(l.Slots)
	b[offWindows] = byte(len(l.Windows))
	le.PutUint32(b[offEpoch:], epoch)
	for column := range l.Windows {
		putWindow(b.definition(column), &l.Windows[column])
	}
	if l.hasHolds {
		b.beginHolds(l)
	}
	return b
}

// readable reports whether this build can use b: it knows the format and the
// windows, and the size agrees with the header.
func (b page) readable() bool {
	if len(b) < headBytes || b[offVersion] != formatVersion || b[offKind] != kindCounters {
		return false
	}
	n := int(b[offWindows])
	if n > MaxWindows || b[offSlots] == 0 || len(b) < headBytes+n*windowBytes {
		return false
	}
	if le.Uint16(b[offSpare:]) != 0 || b.floorTime() < 0 {
		return false
	}
	size := headBytes + n*windowBytes
	slot := fingerprintBytes + recordHeadBytes
	for i := range n {
		w, known := readWindow(b.definition(i))
		if !known {
			return false
		}
		usage, floor := usageBytes(&w)
		size += floor
		slot += usage
	}
	return len(b) == size+int(b[offSlots])*slot
}

// layout reads b's own layout; b must be readable.
func (b page) layout() Layout {
	windows := make([]limit.Window, b[offWindows])
	for i := range windows {
		windows[i], _ = readWindow(b.definition(i))
	}
	return NewLayout(windows, int(b[offSlots]))
}

func (b page) definition(column int) []byte { return b[headBytes+column*windowBytes:] }
func (b page) epoch() uint32                { return le.Uint32(b[offEpoch:]) }
func (b page) generation() uint16           { return le.Uint16(b[offGeneration:]) & generationMask }
func (b page) floorTime() int64             { return int64(le.Uint64(b[offFloorTime:])) }

func (b page) setFloorTime(t int64) { le.PutUint64(b[offFloorTime:], uint64(t)) }

// nextGeneration increments the page's generation and returns it.
func (b page) nextGeneration() uint16 {
	le.PutUint16(b[offGeneration:], (b.generation()+1)&generationMask)
	return b.generation()
}

// find returns the slot of the key with that fingerprint, or -1. It compares two
// fingerprints at once.
func (b page) find(l *Layout, fingerprint uint32) int {
	prints := b[l.fingerprintsAt:l.recordsAt]
	wanted := uint64(fingerprint)<<32 | uint64(fingerprint)
	for i := 0; len(prints) >= 2*fingerprintBytes; i += 2 {
		differs := le.Uint64(prints) ^ wanted
		if uint32(differs) == 0 && !b.free(l, i) {
			return i
		}
		if differs>>32 == 0 && !b.free(l, i+1) {
			return i + 1
		}
		prints = prints[2*fingerprintBytes:]
	}
	last := l.Slots - 1 // one is left where the number of slots is odd
	if len(prints) > 0 && le.Uint32(prints) == fingerprint && !b.free(l, last) {
		return last
	}
	return -1
}

func (b page) record(l *Layout, slot int) []byte {
	offset := l.recordsAt + slot*l.recordBytes
	return b[offset : offset+l.recordBytes]
}

// free reports whether the slot has no record.
func (b page) free(l *Layout, slot int) bool { return le.Uint64(b.record(l, slot)) == 0 }

// place puts an empty record into the slot for the key with that fingerprint. The slot is free until setTime.
func (b page) place(l *Layout, slot int, fingerprint uint32) {
	clear(b.record(l, slot))
	le.PutUint32(b[l.fingerprintsAt+slot*fingerprintBytes:], fingerprint)
	b.mark(l, slot, b.generation(), false)
}

// time returns when the slot's record was last written.
func (b page) time(l *Layout, slot int) int64 {
	return int64(le.Uint64(b.record(l, slot)) - 1)
}

func (b page) setTime(l *Layout, slot int, t int64) {
	le.PutUint64(b.record(l, slot), uint64(t)+1)
}

func (b page) recordGeneration(l *Layout, slot int) uint16 {
	return le.Uint16(b.record(l, slot)[offRecordGeneration:]) & generationMask
}

// wasReset reports whether the slot's record says that the key was reset.
func (b page) wasReset(l *Layout, slot int) bool {
	return le.Uint16(b.record(l, slot)[offRecordGeneration:])&resetBit != 0
}

// mark sets the generation of the slot's record, and whether it was reset.
func (b page) mark(l *Layout, slot int, generation uint16, reset bool) {
	if reset {
		generation |= resetBit
	}
	le.PutUint16(b.record(l, slot)[offRecordGeneration:], generation)
}

// convert returns b, which has layout from, in layout to. Windows that both have
// keep their usage, new ones start empty, and the others are dropped.
func (b page) convert(from, to *Layout, epoch uint32) page {
	out := newPage(to, epoch)
	le.PutUint16(out[offGeneration:], b.generation())
	out.setFloorTime(b.floorTime())
	slots := min(from.Slots, to.Slots) // they differ only if the page is damaged: a table keeps its geometry
	for slot := range slots {
		if b.free(from, slot) {
			continue
		}
		fingerprint := b[from.fingerprintsAt+slot*fingerprintBytes:][:fingerprintBytes]
		copy(out[to.fingerprintsAt+slot*fingerprintBytes:], fingerprint)
		copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])
		if to.hasHolds {
			out.setNumber(to, slot, firstNumber)
		}
	}
	for column := range to.Windows {
		source := slices.IndexFunc(from.Windows, to.Windows[column].Same)
		if source < 0 {
			continue
		}
		out.convertFloor(to, column, b, from, source)
		for slot := range slots {
			if !b.free(from, slot) {
				out.convertUsage(to, column, b, from, source, slot)
			}
		}
	}
	return out
}

// convertFloor copies the floor of old's column source.
func (b page) convertFloor(l *Layout, column int, old page, from *Layout, source int) {
	switch l.Windows[column].Algorithm {
	case algorithmLease: // has no floor
	case limit.Concurrency:
		b.convertHolds(l, ofFloor, old, from)
	default:
		b.setFloor(l, column, old.floor(from, source))
	}
}

// convertUsage copies a slot's usage of old's column source.
func (b page) convertUsage(l *Layout, column int, old page, from *Layout, source, slot int) {
	switch w := &l.Windows[column]; w.Algorithm {
	case algorithmLease:
		copy(b.lease(l, slot), old.lease(from, slot))
	case limit.Concurrency:
		b.convertHolds(l, slot, old, from)
	default:
		u := fitLog(old.usage(from, slot, source, nil), int(w.Units))
		b.setUsage(l, slot, column, &u)
	}
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
		u.Log = append(u.Log[:1:1], u.Log...)
	}
	return u
}
