package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// MaxWindows is how many windows a record holds at most.
const MaxWindows = 16

// A page, all integers little endian:
//
//	 0  u8   format version, 1
//	 1  u8   kind of the records, 1 = counters of one proxy
//	 2  u8   slots s
//	 3  u8   windows n
//	 4  u32  epoch: number of the layout below, from the directory
//	 8  u16  generation: bumped when an operation replaces a record's past
//	10  u16  spare, 0
//	12  i64  floor time: newest instant at which a record or floor part was removed, 0 = never
//	20       n × window definition
//	         u8 algorithm, u8 flags (bit 0: elastic), u16 jitter percent of a
//	         fixed_window or units of a log, i64 period, i64 offset
//	         n × floor part
//	         s × u32 fingerprint
//	         s × record
//
// A record:
//
//	 0  u64  time of the last write + 1 ns, 0 = the slot is free
//	 8  u16  low 12 bits generation; bit 12: reset, which keeps the floor away
//	         from the key while the record is empty; the other bits spare, 0
//	10       n × part
//
// A part, and what differs in a floor:
//
//	fixed_window             u32 used; with jitter also u64 end
//	fixed_window_per_key     u32 used, u64 end in the low 63 bits and, in the top
//	                         bit, whether the window slides
//	sliding_window_log       u16 units, in the top bit whether older ones are
//	                         missing (see limit.Usage.Cut), then each unit as the
//	                         low 56 bits of its time, oldest first;
//	                         floor: u32 units, u64 newest time
//	sliding_window_counter   u32 of the current page, u32 of the one before
//	token_bucket             i96 tokens (see limit.Tokens), u64 when full with a
//	                         stamp in its low bits (see limit.NewStamp);
//	                         floor: u32 requests, u32 burst, u64 when full, stamped
const (
	formatVersion = 1
	kindCounters  = 1

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
	recordHeadBytes  = 10
	unitBytes        = 7

	elasticBit     = 1
	slidesBit      = 1 << 63
	cutBit         = 1 << 15
	resetBit       = 1 << 12
	generationMask = resetBit - 1
	unitMask       = 1<<56 - 1
)

// Layout says where things lie in a page that holds the given windows.
type Layout struct {
	Slots   int
	Windows []limit.Window // their limits are not part of it

	parts        [MaxWindows]int // offset of each window's part in a record
	floors       [MaxWindows]int // offset of its floor part in the page
	floor        int             // where the floor parts begin
	fingerprints int
	records      int
	recordBytes  int
	size         int
}

// NewLayout returns the layout of pages with that many slots.
func NewLayout(windows []limit.Window, slots int) Layout {
	l := Layout{Slots: slots, Windows: windows}
	l.floor = headBytes + len(windows)*windowBytes
	parts, floors := 0, l.floor
	for i, w := range windows {
		part, floor := usageBytes(w)
		l.parts[i], l.floors[i] = parts, floors
		parts += part
		floors += floor
	}
	l.fingerprints = floors
	l.records = l.fingerprints + slots*fingerprintBytes
	l.recordBytes = recordHeadBytes + parts
	l.size = l.records + slots*l.recordBytes
	return l
}

// ValueBytes is the size of a page's value.
func (l *Layout) ValueBytes() int { return l.size }

// usageBytes is the size of a window's part in a record and in the floor; 0 for
// an algorithm that this build does not know.
func usageBytes(w limit.Window) (part, floor int) {
	switch w.Algorithm {
	case limit.FixedWindow:
		if w.Jitter > 0 {
			return 12, 12
		}
		return 4, 4
	case limit.FixedWindowPerKey:
		return 12, 12
	case limit.SlidingWindowLog:
		return 2 + int(w.Units)*unitBytes, 12
	case limit.SlidingWindowCounter:
		return 8, 8
	case limit.TokenBucket:
		return 20, 16
	}
	return 0, 0
}

// Geometry is how many pages of how many slots a table has. It is chosen
// when a table comes into being and stays with it, so that a changed list of
// windows still finds every key.
type Geometry struct {
	Pages uint32
	Slots uint8
}

// fills are the slots a page may have, the largest first, the size up to
// which it has them, and how much of them capacity may take so that fewer than
// 2 in 100 newcomers meet a full page, with keys coming and going. A page
// is copied at each read and write, so only logs are worth more than 2 KiB.
var fills = [...]struct{ slots, bytes, percent uint64 }{
	{32, 2 << 10, 70}, {16, 4 << 10, 60}, {8, 8 << 10, 44}, {4, 1 << 63, 24},
}

// GeometryFor returns the geometry of a table of capacity live keys. A table
// that fits into one page has exactly capacity slots.
func GeometryFor(windows []limit.Window, capacity uint32) Geometry {
	i := 0
	for {
		if l := NewLayout(windows, int(fills[i].slots)); uint64(l.size) <= fills[i].bytes {
			break
		}
		i++
	}
	if uint64(capacity) <= fills[i].slots {
		return Geometry{Pages: 1, Slots: uint8(max(capacity, 1))}
	}
	perPage := fills[i].slots * fills[i].percent
	return Geometry{Pages: uint32((uint64(capacity)*100 + perPage - 1) / perPage), Slots: uint8(fills[i].slots)}
}

// TotalSlots is the most keys the table can hold.
func (g Geometry) TotalSlots() uint64 { return uint64(g.Pages) * uint64(g.Slots) }

// entryBytes is what one entry of Envoy's shared data takes beside its value:
// the map's node with key and cas, and its share of the hash table.
const entryBytes = 96

// HostBytes is the most memory a table takes in Envoy. The allocator rounds a
// value up to one of its size classes: in Envoy 1.40, 1 to 8 windows, 620 to
// 1,684 bytes, took a sixth more at the most. The rest is for metrics.
func HostBytes(windows []limit.Window, capacity uint32) uint64 {
	g := GeometryFor(windows, capacity)
	l := NewLayout(windows, int(g.Slots))
	return uint64(g.Pages) * valueBytes(l.size)
}

// valueBytes is the most memory a page of that size takes.
func valueBytes(size int) uint64 { return uint64(entryBytes + size + size/5) }
