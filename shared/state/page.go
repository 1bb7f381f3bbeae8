package state

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// MaxWindows is how many windows a table has at most.
const MaxWindows = 16

// The layout of a page. All integers are little endian:
//
//	 0  u8   format version, 1
//	 1  u8   kind of the records, 1 = counters of one proxy
//	 2  u8   slots s
//	 3  u8   windows n
//	 4  u32  epoch of the windows below, from the directory
//	 8  u16  generation: incremented when an operation sets or resets a record
//	10  u16  spare, 0
//	12  i64  floor time: when a record or the floor of a window was last removed, 0 = never
//	20       n × window definition
//	         u8 algorithm, u8 flags (bit 0: elastic), u16 jitter percent of a
//	         fixed_window or units of a log, i64 period, i64 offset
//	         n × floor
//	         s × u32 fingerprint
//	         s × record
//
// A record:
//
//	 0  u64  time of the last write + 1 ns, 0 = the slot is free
//	 8  u16  low 12 bits generation; bit 12: the key was reset and starts from
//	         nothing instead of the floor; the other bits spare, 0
//	10       n × usage
//
// The usage of one window, and its floor if that differs:
//
//	fixed_window             u32 used; with jitter also u64 end; of months: no jitter
//	fixed_window_per_key     u32 used, u64 end in the low 63 bits and, in the top
//	                         bit, whether the window slides
//	sliding_window_log       u16 units, in the top bit whether older ones were
//	                         dropped (see limit.Usage.Cut), then the low 56 bits
//	                         of each unit's time, oldest first;
//	                         floor: u32 units, u64 newest time
//	sliding_window_counter   u32 units of the current period, u32 of the previous
//	token_bucket             i96 tokens (see limit.Tokens), u64 when full with a
//	                         stamp in its low bits (see limit.NewStamp);
//	                         floor: u32 tokens gained a period, u32 burst,
//	                         u64 when full, stamped
//	concurrency              u32 newest eighth, u32 number of the record, 9 × u32
//	                         units (see limit.Held); it is the last column;
//	                         floor: the same, where the number is that of the
//	                         record placed last; u32 epoch in which the page began
//	                         to hold, u32 number up to which records that are gone
//	                         may have been reset, 0 = none
//	a lease                  see lease.go; it is the only column of its table
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

	fingerprintBytes = 4
	recordHeadBytes  = 10 + spareBytes
	unitBytes        = 7

	elasticBit     = 1
	slidesBit      = 1 << 63
	cutBit         = 1 << 15
	resetBit       = 1 << 12
	generationMask = resetBit - 1
	unitMask       = 1<<56 - 1
)

// Layout is where things lie in a page with the given windows. All offsets and
// sizes are in bytes.
type Layout struct {
	Slots   int
	Windows []limit.Window // without their limits

	usages       [MaxWindows]int // offset of each window's usage in a record
	floors       [MaxWindows]int // offset of each window's floor in the page
	floor        int             // offset of the first floor
	fingerprints int             // offset
	records      int             // offset
	recordBytes  int
	size         int
	counts       int  // windows that count; a Concurrency behind them holds
	holds        bool // there is one
	leases       bool // the only column is a lease
}

// NewLayout returns the layout of pages with that many slots.
func NewLayout(windows []limit.Window, slots int) Layout {
	l := Layout{Slots: slots, Windows: windows}
	l.counts = len(windows)
	if n := len(windows); n > 0 {
		l.holds, l.leases = windows[n-1].Algorithm == limit.Concurrency, windows[n-1].Algorithm == algorithmLease
		if l.holds || l.leases {
			l.counts--
		}
	}
	l.floor = headBytes + len(windows)*windowBytes
	usages, floors := 0, l.floor
	for i, w := range windows {
		usage, floor := usageBytes(w)
		l.usages[i], l.floors[i] = usages, floors
		usages += usage
		floors += floor
	}
	l.fingerprints = floors
	l.records = l.fingerprints + slots*fingerprintBytes
	l.recordBytes = recordHeadBytes + usages
	l.size = l.records + slots*l.recordBytes
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
	b[offVersion], b[offKind] = formatVersion, kindCounters
	b[offSlots], b[offWindows] = byte(l.Slots), byte(len(l.Windows))
	le.PutUint32(b[offEpoch:], epoch)
	for i, w := range l.Windows {
		putWindow(b[headBytes+i*windowBytes:], w)
	}
	if l.holds {
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
	if le.Uint16(b[offSpare:]) != 0 || int64(le.Uint64(b[offFloorTime:])) < 0 {
		return false
	}
	size := headBytes + n*windowBytes
	record := fingerprintBytes + recordHeadBytes
	for i := range n {
		w, known := readWindow(b[headBytes+i*windowBytes:])
		if !known {
			return false
		}
		usage, floor := usageBytes(w)
		size += floor
		record += usage
	}
	return len(b) == size+int(b[offSlots])*record
}

// layout reads b's own layout; b must be readable.
func (b page) layout() Layout {
	windows := make([]limit.Window, b[offWindows])
	for i := range windows {
		windows[i], _ = readWindow(b[headBytes+i*windowBytes:])
	}
	return NewLayout(windows, int(b[offSlots]))
}

func (b page) epoch() uint32 { return le.Uint32(b[offEpoch:]) }

func (b page) generation() uint16 { return le.Uint16(b[offGeneration:]) & generationMask }

func (b page) floorTime() int64 { return int64(le.Uint64(b[offFloorTime:])) }

func (b page) setFloorTime(t int64) { le.PutUint64(b[offFloorTime:], uint64(t)) }

// nextGeneration increments the page's generation and returns it.
func (b page) nextGeneration() uint16 {
	le.PutUint16(b[offGeneration:], (b.generation()+1)&generationMask)
	return b.generation()
}

func putWindow(b []byte, w limit.Window) {
	b[0], b[1] = byte(w.Algorithm), 0
	if w.Elastic {
		b[1] = elasticBit
	}
	extra := uint16(w.Jitter)
	if w.Algorithm == limit.SlidingWindowLog || w.Algorithm == algorithmLease {
		extra = w.Units
	}
	le.PutUint16(b[2:], extra)
	le.PutUint64(b[4:], uint64(w.PeriodNs))
	le.PutUint64(b[12:], uint64(w.OffsetNs))
}

// readWindow returns the definition at b, and whether this build knows it.
func readWindow(b []byte) (limit.Window, bool) {
	w := limit.Window{
		Algorithm: limit.Algorithm(b[0]),
		PeriodNs:  int64(le.Uint64(b[4:])),
		OffsetNs:  int64(le.Uint64(b[12:])),
		Elastic:   b[1] == elasticBit,
	}
	extra, maxExtra := le.Uint16(b[2:]), uint16(0)
	switch w.Algorithm {
	case limit.FixedWindow:
		w.Jitter, maxExtra = uint8(extra), 100
	case limit.SlidingWindowLog:
		w.Units, maxExtra = extra, limit.MaxLog
	case algorithmLease:
		w.Units, maxExtra = extra, MaxWindows
	default: // no more fields
	}
	usage, _ := usageBytes(w)
	known := usage != 0 && extra <= maxExtra &&
		(b[1] == 0 || w.Elastic && w.Algorithm == limit.FixedWindowPerKey) &&
		w.InRange()
	return w, known
}

// find returns the slot of the key with that fingerprint, or -1. It compares two
// fingerprints at once.
func (b page) find(l *Layout, fingerprint uint32) int {
	prints, wanted := b[l.fingerprints:l.records], uint64(fingerprint)<<32|uint64(fingerprint)
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
	if last := l.Slots - 1; len(prints) > 0 && le.Uint32(prints) == fingerprint && !b.free(l, last) {
		return last
	}
	return -1
}

func (b page) record(l *Layout, slot int) []byte {
	at := l.records + slot*l.recordBytes
	return b[at : at+l.recordBytes]
}

// free reports whether the slot has no record.
func (b page) free(l *Layout, slot int) bool { return le.Uint64(b.record(l, slot)) == 0 }

// place puts an empty record into the slot for the key with that fingerprint.
func (b page) place(l *Layout, slot int, fingerprint uint32) {
	clear(b.record(l, slot))
	le.PutUint32(b[l.fingerprints+slot*fingerprintBytes:], fingerprint)
	le.PutUint16(b.record(l, slot)[8:], b.generation())
}

// time returns when the slot's record was last written.
func (b page) time(l *Layout, slot int) int64 {
	return int64(le.Uint64(b.record(l, slot)) - 1)
}

func (b page) setTime(l *Layout, slot int, t int64) {
	le.PutUint64(b.record(l, slot), uint64(t)+1)
}

func (b page) recordGeneration(l *Layout, slot int) uint16 {
	return le.Uint16(b.record(l, slot)[8:]) & generationMask
}

// wasReset reports whether the slot's record says that the key was reset.
func (b page) wasReset(l *Layout, slot int) bool {
	return le.Uint16(b.record(l, slot)[8:])&resetBit != 0
}

// mark sets the generation of the slot's record, and whether it was reset.
func (b page) mark(l *Layout, slot int, generation uint16, reset bool) {
	if reset {
		generation |= resetBit
	}
	le.PutUint16(b.record(l, slot)[8:], generation)
}

// convert returns b, which has layout from, in layout to. Windows that both have
// keep their usage, new ones start empty, and the others are dropped.
func (b page) convert(from, to *Layout, epoch uint32) page {
	out := newPage(to, epoch)
	le.PutUint16(out[offGeneration:], b.generation())
	out.setFloorTime(b.floorTime())
	for slot := range min(from.Slots, to.Slots) {
		if b.free(from, slot) {
			continue
		}
		at := from.fingerprints + slot*fingerprintBytes
		copy(out[to.fingerprints+slot*fingerprintBytes:], b[at:at+fingerprintBytes])
		copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])
		if to.holds {
			out.setNumber(to, slot, firstNumber)
		}
	}
	for i, w := range to.Windows {
		j := slices.IndexFunc(from.Windows, w.Same)
		if j < 0 {
			continue
		}
		for slot := ofFloor; slot < min(from.Slots, to.Slots); slot++ {
			switch {
			case slot != ofFloor && b.free(from, slot):
			case w.Algorithm == limit.Concurrency:
				out.moveHeld(to, slot, b, from, slot)
			case w.Algorithm == algorithmLease && slot != ofFloor:
				copy(out.lease(to, slot), b.lease(from, slot))
			case w.Algorithm == algorithmLease: // has no floor
			case slot == ofFloor:
				out.setFloor(to, i, b.floor(from, j))
			default:
				u := refit(b.usage(from, slot, j, nil), int(w.Units))
				out.setUsage(to, slot, i, &u)
			}
		}
	}
	return out
}

// refit fits u's log into that many units. If there is room again for units that
// were dropped, copies of the oldest unit take their place, so that the key gains
// no quota.
func refit(u limit.Usage, units int) limit.Usage {
	if drop := len(u.Log) - units; drop > 0 {
		u.Log, u.Cut = u.Log[drop:], true
	}
	for u.Cut && len(u.Log) > 0 && len(u.Log) < units {
		u.Log = append(u.Log[:1:1], u.Log...)
	}
	return u
}

// Geometry is how many pages of how many slots a table has. It is chosen when the
// table is made and never changes, so that every key is still found if the list
// of windows changes.
type Geometry struct {
	Pages uint32
	Slots uint8
}

// fills are the choices for a page: its slots, its largest size with them, and
// the percentage of slots that capacity may use, so that fewer than 2 in 100 new
// keys meet a full page while keys come and go. A page is copied at each read and
// write, so only logs are worth more than 2 KiB.
var fills = [...]struct {
	slots          uint8
	bytes, percent uint64
}{
	{32, 2 << 10, 70}, {16, 4 << 10, 60}, {8, 8 << 10, 44}, {4, 1 << 63, 24},
}

// GeometryFor returns the geometry of a table for capacity live keys. If they fit
// into one page, it has exactly that many slots.
func GeometryFor(windows []limit.Window, capacity uint32) Geometry {
	i := 0
	for {
		if l := NewLayout(windows, int(fills[i].slots)); uint64(l.size) <= fills[i].bytes {
			break
		}
		i++
	}
	if capacity <= uint32(fills[i].slots) {
		return Geometry{Pages: 1, Slots: uint8(max(capacity, 1))}
	}
	perPage := uint64(fills[i].slots) * fills[i].percent
	return Geometry{Pages: uint32((uint64(capacity)*100 + perPage - 1) / perPage), Slots: fills[i].slots}
}

// TotalSlots is how many keys the table can hold.
func (g Geometry) TotalSlots() uint64 { return uint64(g.Pages) * uint64(g.Slots) }

// entryBytes is the memory of an entry in Envoy's shared data besides its value:
// the map's node with key and cas, and its share of the hash table.
const entryBytes = 96

// HostBytes is an upper bound of the memory that a table takes in Envoy, in bytes.
// Envoy's allocator rounds a value up to one of its size classes: in Envoy 1.40,
// pages with 1 to 8 windows, of 620 to 1,684 bytes, took up to a sixth more. The
// bound allows a fifth; the difference is for metrics.
func HostBytes(windows []limit.Window, capacity uint32) uint64 {
	g := GeometryFor(windows, capacity)
	l := NewLayout(windows, int(g.Slots))
	return uint64(g.Pages) * valueBytes(l.size)
}

// valueBytes is an upper bound of the memory of a page of that size.
func valueBytes(size int) uint64 { return uint64(entryBytes + size + size/5) }
