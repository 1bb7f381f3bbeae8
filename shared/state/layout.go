package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

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

// usageBytes is the size of a window's usage in a record, and of its floor; both
// are 0 for an algorithm that this build does not know.
func usageBytes(w limit.Window) (usage, floor int) {
	switch w.Algorithm {
	case limit.FixedWindow:
		if w.Jitter > 0 {
			return 12, 12
		}
		return 4, 4
	case limit.Calendar:
		return 4, 4
	case limit.FixedWindowPerKey:
		return 12, 12
	case limit.SlidingWindowLog:
		return 2 + int(w.Units)*unitBytes, 12
	case limit.SlidingWindowCounter:
		return 8, 8
	case limit.TokenBucket:
		return 20, 16
	case limit.Concurrency:
		return heldBytes, heldFloorBytes
	case algorithmLease:
		return leaseBytes + int(w.Units)*standingBytes, 0
	}
	return 0, 0
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
