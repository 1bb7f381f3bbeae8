package page

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A table of capacity 1,000 has 45 pages of 32 slots, if such a page fits into 2 KiB. A
// key's hash says which page its record is in. Any slot there will do:
//
//	         slot 0   1   2   3        31
//	page 0  |  ■   |   | ■ | ■ |  ...  |   |     ■  a record
//	page 1  |      | ■ |   | ■ |  ...  | ■ |
//	  ...
//	page 44 |  ■   | ■ | ■ | ■ |  ...  | ■ |     all 32 are live: a new key of this page evicts one
//
// Hashes do not fill pages evenly, so capacity may use only a part of all slots. If records are
// larger, a page has fewer slots, and capacity may use a smaller part of them: see fills.

// Geometry is how many pages of how many slots a table has. It is chosen when the
// table is made and never changes, so that every key is still found if the list
// of windows changes.
type Geometry struct {
	Pages uint32
	Slots uint8
}

// fill is a choice for pages: how many slots they have, their largest size with them, and
// the percentage of all slots that capacity may use.
type fill struct {
	slots   uint8
	bytes   uint64
	percent uint64
}

// fills are the choices, the best first. With these percentages fewer than 2 in 100 new
// keys meet a full page while keys come and go. A page is copied at each read and
// write, so only logs are worth more than 2 KiB.
var fills = [...]fill{
	{32, 2 << 10, 70},
	{16, 4 << 10, 60},
	{8, 8 << 10, 44},
	{4, 1 << 63, 24},
}

// fillFor returns the first choice in whose size a page with these windows fits.
func fillFor(windows []limit.Window) fill {
	for _, f := range fills {
		if l := NewLayout(windows, int(f.slots)); uint64(l.size) <= f.bytes {
			return f
		}
	}
	return fills[len(fills)-1]
}

// GeometryFor returns the geometry of a table for capacity live keys. If they fit
// into one page, it has exactly that many slots.
func GeometryFor(windows []limit.Window, capacity uint32) Geometry {
	f := fillFor(windows)
	if capacity <= uint32(f.slots) {
		return Geometry{Pages: 1, Slots: uint8(max(capacity, 1))}
	}
	percentPerPage := uint64(f.slots) * f.percent
	pages := (uint64(capacity)*100 + percentPerPage - 1) / percentPerPage
	return Geometry{Pages: uint32(pages), Slots: f.slots}
}

// TotalSlots is how many keys the table can hold.
func (g Geometry) TotalSlots() uint64 { return uint64(g.Pages) * uint64(g.Slots) }

// HostBytes is an upper bound of the memory that a table takes in Envoy, in bytes.
func HostBytes(windows []limit.Window, capacity uint32) uint64 {
	g := GeometryFor(windows, capacity)
	l := NewLayout(windows, int(g.Slots))
	return uint64(g.Pages) * PageHostBytes(l.size)
}

// nodeBytes is what a value in Envoy's shared data takes besides its bytes: the map's node
// with key and cas, and its share of the hash table.
const nodeBytes = 96

// PageHostBytes is an upper bound of the memory that a page of that size takes in Envoy.
//
// Envoy's allocator rounds a value up to one of its size classes: in Envoy 1.40,
// pages with 1 to 8 windows, of 620 to 1,684 bytes, took up to a sixth more. The
// bound allows a fifth; the difference is for metrics.
func PageHostBytes(size int) uint64 { return uint64(nodeBytes + size + size/5) }

// MaxWindows is how many windows a table has at most.
const MaxWindows = 16

// Column is the place of a window among those of a page. Its place among those of a policy may be another: a table may
// have windows that the policy does not have, and lack some that it has.
type Column int

// NoColumn is the column of a window that a page lacks.
const NoColumn Column = -1

// Layout is where things lie in a page with the given windows, which are the columns of
// its records. All offsets and sizes are in bytes.
type Layout struct {
	Slots   int
	Windows []limit.Window // their limits mean nothing: windows from the directory have none

	Counting    Column        // how many columns count; they come first
	HoldsWindow *limit.Window // of what is held, a limit.Concurrency; nil = nothing is. Its column is after those
	HasLeases   bool          // the only column is a lease, and none counts

	usageAt        [MaxWindows]int // offset of each window's usage in a record, after its head
	floorAt        [MaxWindows]int // offset of each window's floor in the page
	definitionsEnd int             // where the floors begin
	fingerprintsAt int
	recordsAt      int
	recordBytes    int
	size           int
}

// NewLayout returns the layout of pages with that many slots.
func NewLayout(windows []limit.Window, slots int) *Layout {
	l := &Layout{Slots: slots, Windows: windows}
	l.Counting = Column(len(windows))
	if n := len(windows); n > 0 {
		switch last := &windows[n-1]; last.Algorithm {
		case limit.Concurrency:
			l.HoldsWindow = last
			l.Counting--
		case Lease:
			l.HasLeases = true
			l.Counting--
		default: // it counts
		}
	}
	l.definitionsEnd = headBytes + len(windows)*WindowBytes
	usageAt, floorAt := 0, l.definitionsEnd
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

// holdsColumn is the column of what is held, in a layout that HasHolds: the one after those that count.
func (l *Layout) holdsColumn() Column { return l.Counting }

// ColumnOf returns the column of the window that counts as w does, or NoColumn.
func (l *Layout) ColumnOf(w limit.Window) Column { return Column(slices.IndexFunc(l.Windows, w.Same)) }

// HasHolds reports whether a page may hold units.
func (l *Layout) HasHolds() bool { return l.HoldsWindow != nil }
