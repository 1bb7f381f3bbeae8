// Package directory is two values in shared data that tell which tables there are, and who uses them: the
// directory, and the heartbeats of its owners. It decodes, changes and encodes them; package state reads and writes
// them, and counts in the tables.
//
// Its invariant: whatever configurations come and go, a number in use is one counter's, and a page of an epoch before
// the table's base is nobody's.
//
// The directory has a registration of each table, which says to which
// counter the table belongs, where its pages are and which windows they have. Its owners are the
// configurations that count in it. The life of a table:
//
//	     Register            removeOwners, of the last one                sweep
//	none ---------> in use ------------------------------> waiting ----------------> none: its number is free
//	                  ^                                       |
//	                  +----------- Register (join) -----------+
//
//	change         who calls it
//	Register       a worker, before it first counts in the table, and at each of its heartbeats
//	removeOwners   Register, for the counter's other tables; LeaveAndSweep, for the counters that a configuration no
//	               longer has; DropOwners, for owners that have missed too many heartbeats
//	sweep          LeaveAndSweep, which a worker calls before it registers tables
//
// A table waits until its records count no more (countsNs), in case its counter comes back. Then its number is used
// for another one, with a new epoch as its base: pages of an earlier one are empty.
//
// An epoch numbers the windows of a table: a configuration that changes them takes the next
// one, and each page has the epoch in which it was written. So a worker that meets a page
// of a later epoch knows that it must read the directory again, and converts those of
// earlier epochs.
//
// Owners with the same windows of a counter share its table. An owner with other windows gets a table of its own
// while the owner before still counts in the old one. A log that stayed long when its limit was lowered is another
// window too: an owner that comes with the lower limit gets a table of its own.
//
// directory.go has its bytes, life.go how tables come and go, and heartbeats.go how an owner that has ended leaves
// its tables. The tests here are of what a registration finds. Those of package state play the life of tables, with
// workers that count in them.
package directory

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// How the directory is written down. All integers are little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 2 = directory
//	2  u16  tables t
//	4  u32  newest epoch
//	8       t × registration
//
// A registration:
//
//	 0  16   counter id
//	16  u16  number
//	18  u8   slots of a page
//	19  u8   windows n
//	20  u32  pages
//	24  u32  base: pages of an older epoch belong to a vanished counter
//	28  u32  epoch of the windows below
//	32  i64  when the newest configuration that registered the table was made
//	40  i64  when its last owner left, 0 = in use
//	48  u16  owners m
//	50       n × window definition, see usage.go of package page
//	         m × u64 owner, i64 when the owner's configuration was made
const (
	kindDirectory = 2
	offTables     = 2
	offNewest     = 4
	headBytes     = 8

	offNumber             = 16
	offSlots              = 18
	offWindows            = 19
	offPages              = 20
	offBase               = 24
	offEpoch              = 28
	offConfigured         = 32
	offVanished           = 40
	offOwners             = 48
	registrationHeadBytes = 50

	ownerBytes = 16

	// WaitingTables is how many tables of vanished counters Envoy may hold beside
	// those in use. Each waits until its records count no more (countsNs), before its number is
	// used again; if there are more, the one that vanished first is re-used at once.
	WaitingTables = 8

	// MaxTables is how many tables a directory has at most: their count has 16 bits. Numbers have as many,
	// so one is always free for another table.
	MaxTables = 1<<16 - 1
)

var le = binary.LittleEndian

// Directory is the registrations of all tables.
type Directory struct {
	Epoch  uint32         // the newest
	Tables []Registration // change their fields only: Register adds some, and LeaveAndSweep removes some
	found  lookup         // their indexes; empty until it is needed, see prepared
}

// Definition is what a policy says about a counter.
type Definition struct {
	Counter  CounterID
	Windows  []limit.Window // in the order of limit.Window.Compare
	Capacity uint32
}

// CounterID identifies a counter: an unkeyed hash that is the same everywhere.
type CounterID [16]byte

// Registration is what the directory has of a table.
type Registration struct {
	Counter      CounterID
	Number       uint16 // in the keys of its pages
	Geometry     page.Geometry
	Base         uint32 // pages of an older epoch belong to a vanished counter
	Epoch        uint32 // of Windows
	ConfiguredNs int64  // when the newest configuration that registered the table was made
	VanishedNs   int64  // when the last owner left, 0 = in use
	Windows      []limit.Window
	Owners       []Owner
	foreign      []byte // all window definitions, if this build does not know one of them
}

// Owner is a configuration, by a hash of its name. A successor has the same name and was
// made later.
type Owner struct {
	ID           uint64
	ConfiguredNs int64
}

// Read decodes a directory; ok is false if this build cannot. It keeps a
// table with windows that only a newer build knows as it is, so that the other
// tables go on working after the filter is rolled back.
func Read(b []byte) (d Directory, ok bool) {
	if len(b) < headBytes || b[0] != page.FormatVersion || b[1] != kindDirectory {
		return d, false
	}
	n := int(le.Uint16(b[offTables:]))
	d.Epoch = le.Uint32(b[offNewest:])
	b = b[headBytes:]
	d.Tables = make([]Registration, n)
	for i := range d.Tables {
		b, ok = d.Tables[i].read(b)
		if !ok {
			return Directory{}, false
		}
	}
	return d, len(b) == 0
}

func (r *Registration) read(b []byte) (rest []byte, ok bool) {
	if len(b) < registrationHeadBytes {
		return nil, false
	}
	copy(r.Counter[:], b)
	r.Number = le.Uint16(b[offNumber:])
	r.Geometry = page.Geometry{Slots: b[offSlots], Pages: le.Uint32(b[offPages:])}
	windows := int(b[offWindows])
	r.Base = le.Uint32(b[offBase:])
	r.Epoch = le.Uint32(b[offEpoch:])
	r.ConfiguredNs = int64(le.Uint64(b[offConfigured:]))
	r.VanishedNs = int64(le.Uint64(b[offVanished:]))
	owners := int(le.Uint16(b[offOwners:]))
	b = b[registrationHeadBytes:]
	if r.Geometry.Slots == 0 || r.Geometry.Pages == 0 || windows > page.MaxWindows || r.Base > r.Epoch ||
		len(b) < windows*page.WindowBytes+owners*ownerBytes {
		return nil, false
	}
	definitions := b[:windows*page.WindowBytes]
	r.Windows = make([]limit.Window, windows)
	for i := range r.Windows {
		w, known := page.ReadWindow(b)
		r.Windows[i] = w
		if !known {
			r.foreign = definitions
		}
		b = b[page.WindowBytes:]
	}
	r.Owners = make([]Owner, owners)
	for i := range r.Owners {
		r.Owners[i] = Owner{le.Uint64(b), int64(le.Uint64(b[8:]))}
		b = b[ownerBytes:]
	}
	return b, true
}

// Append appends the directory as it is stored.
func (d *Directory) Append(b []byte) []byte {
	b = append(b, page.FormatVersion, kindDirectory)
	b = le.AppendUint16(b, uint16(len(d.Tables)))
	b = le.AppendUint32(b, d.Epoch)
	for i := range d.Tables {
		b = d.Tables[i].append(b)
	}
	return b
}

func (r *Registration) append(b []byte) []byte {
	b = append(b, r.Counter[:]...)
	b = le.AppendUint16(b, r.Number)
	b = append(b, r.Geometry.Slots, byte(len(r.Windows)))
	b = le.AppendUint32(b, r.Geometry.Pages)
	b = le.AppendUint32(b, r.Base)
	b = le.AppendUint32(b, r.Epoch)
	b = le.AppendUint64(b, uint64(r.ConfiguredNs))
	b = le.AppendUint64(b, uint64(r.VanishedNs))
	b = le.AppendUint16(b, uint16(len(r.Owners)))
	if r.foreign != nil {
		b = append(b, r.foreign...)
	} else {
		for i := range r.Windows {
			var def [page.WindowBytes]byte
			page.PutWindow(def[:], &r.Windows[i])
			b = append(b, def[:]...)
		}
	}
	for _, o := range r.Owners {
		b = le.AppendUint64(b, o.ID)
		b = le.AppendUint64(b, uint64(o.ConfiguredNs))
	}
	return b
}

// lookup finds a counter's tables in a directory, and free table numbers, without
// a search through all tables: a configuration may have ten thousand. It is valid
// until setTables empties it.
type lookup struct {
	indexes map[CounterID][]int // of the counter's tables
	used    map[uint16]bool
	free    uint16 // every lower number is used
}

// prepared returns the directory's lookup, and makes it if it is empty.
func (d *Directory) prepared() *lookup {
	if d.found.indexes != nil {
		return &d.found
	}
	d.found.indexes = make(map[CounterID][]int, len(d.Tables))
	d.found.used = make(map[uint16]bool, len(d.Tables))
	for i := range d.Tables {
		d.found.add(&d.Tables[i], i)
	}
	return &d.found
}

func (l *lookup) add(r *Registration, index int) {
	l.indexes[r.Counter] = append(l.indexes[r.Counter], index)
	l.used[r.Number] = true
}

// setTables replaces all tables.
func (d *Directory) setTables(tables []Registration) {
	d.Tables = tables
	d.found = lookup{}
}

// TablesOf returns the indexes of the counter's tables, in the directory's order.
func (d *Directory) TablesOf(counter CounterID) (indexes []int) { return d.prepared().indexes[counter] }

// add appends a table.
func (d *Directory) add(r Registration) *Registration {
	d.prepared().add(&r, len(d.Tables))
	d.Tables = append(d.Tables, r)
	return &d.Tables[len(d.Tables)-1]
}

// freeNumber returns the lowest number that no table has. There is one: see MaxTables.
func (d *Directory) freeNumber() uint16 {
	l := d.prepared()
	for l.used[l.free] {
		l.free++
	}
	return l.free
}
