package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// MaxWindows is how many windows a record holds at most.
const MaxWindows = 16

// A bucket, all integers little endian:
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
//	         u8 algorithm, u8 flags (0), u16 spare (0), i64 period, i64 offset
//	         n × floor part, each as in a record
//	         s × u32 fingerprint
//	         s × record
//
// A record:
//
//	 0  u64  time of the last write + 1 ns, 0 = the slot is free
//	 8  u16  low 12 bits generation, high 4 bits flags (spare, 0)
//	10       n × part
//
// A part: fixed_window u32 used; fixed_window_per_key u32 used, u64 with the
// end in the low 63 bits and, in the top bit, whether the window slides.
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
	alignedBytes     = 4
	perKeyBytes      = 12

	slidesBit      = 1 << 63
	generationMask = 1<<12 - 1
)

// Layout says where things lie in a bucket that holds the given windows.
type Layout struct {
	Slots   int
	Windows []limit.Window // their limits are not part of it

	parts        [MaxWindows]int // offset of each window's part in a record
	floor        int             // offset of the floor's parts
	fingerprints int
	records      int
	recordBytes  int
	size         int
}

// NewLayout returns the layout of buckets with that many slots.
func NewLayout(windows []limit.Window, slots int) Layout {
	l := Layout{Slots: slots, Windows: windows}
	parts := 0
	for i, w := range windows {
		l.parts[i] = parts
		parts += partBytes(w.Algorithm)
	}
	l.floor = headBytes + len(windows)*windowBytes
	l.fingerprints = l.floor + parts
	l.records = l.fingerprints + slots*fingerprintBytes
	l.recordBytes = recordHeadBytes + parts
	l.size = l.records + slots*l.recordBytes
	return l
}

// ValueBytes is the size of a bucket's value.
func (l *Layout) ValueBytes() int { return l.size }

func partBytes(a limit.Algorithm) int {
	switch a {
	case limit.FixedWindow:
		return alignedBytes
	case limit.FixedWindowPerKey:
		return perKeyBytes
	default:
		return 0
	}
}

// Geometry is how many buckets of how many slots a table has. It is chosen
// when a table comes into being and stays with it, so that a changed list of
// windows still finds every key.
type Geometry struct {
	Buckets uint32
	Slots   uint8
}

const (
	wideSlots   = 32
	narrowSlots = 16
	wideBytes   = 2048 // a bucket of 32 slots may be this large, else it has 16

	// At these shares of its slots fewer than 2 in 100 newcomers meet a full
	// bucket, with keys coming and going.
	wideFillPercent   = 70
	narrowFillPercent = 60
)

// GeometryFor returns the geometry of a table of capacity live keys. A table
// that fits into one bucket has exactly capacity slots.
func GeometryFor(windows []limit.Window, capacity uint32) Geometry {
	slots, fill := uint64(wideSlots), uint64(wideFillPercent)
	if wide := NewLayout(windows, wideSlots); wide.size > wideBytes {
		slots, fill = narrowSlots, narrowFillPercent
	}
	if uint64(capacity) <= slots {
		return Geometry{Buckets: 1, Slots: uint8(max(capacity, 1))}
	}
	perBucket := slots * fill
	return Geometry{Buckets: uint32((uint64(capacity)*100 + perBucket - 1) / perBucket), Slots: uint8(slots)}
}

// TotalSlots is the most keys the table can hold.
func (g Geometry) TotalSlots() uint64 { return uint64(g.Buckets) * uint64(g.Slots) }

// entryBytes is what one entry of Envoy's shared data takes beside its value:
// the map's node with key and cas, and its share of the hash table.
const entryBytes = 96

// HostBytes is the most memory a table takes in Envoy. The allocator rounds a
// value up to one of its size classes; a sixth more is what it took at most in
// Envoy 1.40 for 1 to 6 windows, 620 to 1,380 bytes.
func HostBytes(windows []limit.Window, capacity uint32) uint64 {
	g := GeometryFor(windows, capacity)
	l := NewLayout(windows, int(g.Slots))
	return uint64(g.Buckets) * uint64(entryBytes+l.size+l.size/6)
}
