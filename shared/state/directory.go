package state

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// The directory is one value in shared data: a registration of each table, which says to which
// counter the table belongs, where its pages are and which windows they have. Its owners are the
// configurations that count in it. A worker registers a table before it first counts in one of its pages.
//
// An epoch numbers the windows of a table: a configuration that changes them takes the next
// one, and each page has the epoch in which it was written. So a worker that meets a page
// of a later epoch knows that it must read the directory again, and converts those of
// earlier epochs.
//
// Owners with the same windows of a counter share its table. An owner with other windows gets a table of its own
// while the owner before still counts in the old one.
//
// A counter has vanished when the last owner of its table has left. The table waits until
// its windows have ended, in case the counter comes back. Then its number is used for
// another one, with the present epoch as its base: pages of an earlier one are empty.
//
// The life of a table:
//
//	     register              leave, of the last owner               removeWaiting
//	none ---------> in use ------------------------------> waiting ----------------> none: its number is free
//	                  ^                                       |
//	                  +----------- register (join) -----------+
//
// All integers are little endian:
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
//	32  i64  when the configuration that chose the windows was made
//	40  i64  when its last owner left, 0 = in use
//	48  u16  owners m
//	50       n × window definition, see definition.go
//	         m × u64 owner, i64 when the owner's configuration was made
const (
	kindDirectory         = 2
	directoryHeadBytes    = 8
	registrationHeadBytes = 50
	ownerBytes            = 16

	// WaitingTables is how many tables of vanished counters Envoy may hold beside
	// those in use. Each waits for its longest window to end before its number is
	// used again; if there are more, the one that vanished first is re-used at once.
	WaitingTables = 8
)

type directory struct {
	epoch  uint32 // the newest
	tables []registration
	found  lookup // lookup.go; empty until it is needed, see prepared
}

// registration is what the directory has of a table.
type registration struct {
	counter      CounterID
	number       uint16 // in the keys of its pages
	geometry     Geometry
	base         uint32 // pages of an older epoch belong to a vanished counter
	epoch        uint32 // of windows
	configuredNs int64  // when the configuration that chose the windows was made
	vanishedNs   int64  // when the last owner left, 0 = in use
	windows      []limit.Window
	owners       []owner
	foreign      []byte // all window definitions, if this build does not know one of them
}

// owner is a configuration, by its name, see OwnerID. A successor has the same name and was
// made later.
type owner struct {
	id           uint64
	configuredNs int64
}

// readDirectory decodes a directory; ok is false if this build cannot. It keeps a
// table with windows that only a newer build knows as it is, so that the other
// tables go on working after the filter is rolled back.
func readDirectory(b []byte) (d directory, ok bool) {
	if len(b) < directoryHeadBytes || b[0] != formatVersion || b[1] != kindDirectory {
		return d, false
	}
	n := int(le.Uint16(b[2:]))
	d.epoch = le.Uint32(b[4:])
	b = b[directoryHeadBytes:]
	d.tables = make([]registration, n)
	for i := range d.tables {
		b, ok = d.tables[i].read(b)
		if !ok {
			return directory{}, false
		}
	}
	return d, len(b) == 0
}

func (r *registration) read(b []byte) (rest []byte, ok bool) {
	if len(b) < registrationHeadBytes {
		return nil, false
	}
	copy(r.counter[:], b)
	r.number = le.Uint16(b[16:])
	r.geometry = Geometry{Slots: b[18], Pages: le.Uint32(b[20:])}
	windows := int(b[19])
	r.base = le.Uint32(b[24:])
	r.epoch = le.Uint32(b[28:])
	r.configuredNs = int64(le.Uint64(b[32:]))
	r.vanishedNs = int64(le.Uint64(b[40:]))
	owners := int(le.Uint16(b[48:]))
	b = b[registrationHeadBytes:]
	if r.geometry.Slots == 0 || r.geometry.Pages == 0 || windows > MaxWindows || r.base > r.epoch ||
		len(b) < windows*windowBytes+owners*ownerBytes {
		return nil, false
	}
	definitions := b[:windows*windowBytes]
	r.windows = make([]limit.Window, windows)
	for i := range r.windows {
		w, known := readWindow(b)
		r.windows[i] = w
		if !known {
			r.foreign = definitions
		}
		b = b[windowBytes:]
	}
	r.owners = make([]owner, owners)
	for i := range r.owners {
		r.owners[i] = owner{le.Uint64(b), int64(le.Uint64(b[8:]))}
		b = b[ownerBytes:]
	}
	return b, true
}

func (d *directory) append(b []byte) []byte {
	b = append(b, formatVersion, kindDirectory)
	b = le.AppendUint16(b, uint16(len(d.tables)))
	b = le.AppendUint32(b, d.epoch)
	for i := range d.tables {
		b = d.tables[i].append(b)
	}
	return b
}

func (r *registration) append(b []byte) []byte {
	b = append(b, r.counter[:]...)
	b = le.AppendUint16(b, r.number)
	b = append(b, r.geometry.Slots, byte(len(r.windows)))
	b = le.AppendUint32(b, r.geometry.Pages)
	b = le.AppendUint32(b, r.base)
	b = le.AppendUint32(b, r.epoch)
	b = le.AppendUint64(b, uint64(r.configuredNs))
	b = le.AppendUint64(b, uint64(r.vanishedNs))
	b = le.AppendUint16(b, uint16(len(r.owners)))
	if r.foreign != nil {
		b = append(b, r.foreign...)
	} else {
		for i := range r.windows {
			var def [windowBytes]byte
			putWindow(def[:], &r.windows[i])
			b = append(b, def[:]...)
		}
	}
	for _, o := range r.owners {
		b = le.AppendUint64(b, o.id)
		b = le.AppendUint64(b, uint64(o.configuredNs))
	}
	return b
}

// forgetFuture treats configurations that were made well after now as the oldest:
// the clock was set back since, and later configurations must outrank them. A counter
// that vanished then has vanished now.
func (d *directory) forgetFuture(now int64) {
	for i := range d.tables {
		r := &d.tables[i]
		r.configuredNs = pastOrOldest(r.configuredNs, now)
		if r.vanishedNs > now+aheadNs {
			r.vanishedNs = max(now, 1)
		}
		for j := range r.owners {
			r.owners[j].configuredNs = pastOrOldest(r.owners[j].configuredNs, now)
		}
	}
}

func pastOrOldest(configuredNs, now int64) int64 {
	const skewNs = 1_000_000_000
	if configuredNs > now+skewNs {
		return 0
	}
	return configuredNs
}

// leaveAndSweep removes o from tables whose counter its configuration no longer has,
// unless a later configuration still has it. It removes tables that have waited long enough.
func (d *directory) leaveAndSweep(o owner, keeps func(CounterID) bool, now int64) {
	for i := range d.tables {
		if r := &d.tables[i]; !keeps(r.counter) {
			r.leave(o, now)
		}
	}
	d.removeWaiting(now)
}

// removeWaiting removes tables that have waited for their longest window to end, and the first
// to vanish of more than WaitingTables.
func (d *directory) removeWaiting(now int64) {
	d.tables = slices.DeleteFunc(d.tables, func(r registration) bool {
		return r.waits() && now-r.vanishedNs >= longestNs(r.windows)
	})
	waiting := 0
	for i := range d.tables {
		if d.tables[i].waits() {
			waiting++
		}
	}
	for ; waiting > WaitingTables; waiting-- {
		first := d.firstVanished()
		d.tables = slices.Delete(d.tables, first, first+1)
	}
	d.found = lookup{} // the indexes have changed
}

// waits reports whether the table's counter has vanished.
func (r *registration) waits() bool { return len(r.owners) == 0 }

// firstVanished returns the index of the waiting table whose counter vanished first.
func (d *directory) firstVanished() int {
	first := -1
	for i := range d.tables {
		r := &d.tables[i]
		if r.waits() && (first < 0 || r.vanishedNs < d.tables[first].vanishedNs) {
			first = i
		}
	}
	return first
}

// leave removes o, of this configuration or an older one, from the table.
func (r *registration) leave(o owner, now int64) {
	r.owners = slices.DeleteFunc(r.owners, func(p owner) bool {
		return p.id == o.id && p.configuredNs <= o.configuredNs
	})
	if len(r.owners) == 0 && r.vanishedNs == 0 {
		r.vanishedNs = max(now, 1)
	}
}

func (r *registration) join(o owner) {
	r.vanishedNs = 0
	for i := range r.owners {
		if p := &r.owners[i]; p.id == o.id {
			p.configuredNs = max(p.configuredNs, o.configuredNs)
			return
		}
	}
	r.owners = append(r.owners, o)
}

// hasOthers reports whether the table has an owner besides o.
func (r *registration) hasOthers(o owner) bool {
	return slices.ContainsFunc(r.owners, func(p owner) bool { return p.id != o.id })
}

func (r *registration) hasOwner(id uint64) bool {
	return slices.ContainsFunc(r.owners, func(p owner) bool { return p.id == id })
}

// hasOwner reports whether the owner has a table.
func (d *directory) hasOwner(id uint64) bool {
	return slices.ContainsFunc(d.tables, func(r registration) bool { return r.hasOwner(id) })
}

// register returns the table for o's counter: the one that choose finds, changed to these
// windows unless a later configuration chose others; else a new one.
func (d *directory) register(o owner, def *Definition, now int64) *registration {
	chosen := d.choose(o, def)
	for _, i := range d.tablesOf(def.Counter) {
		if i != chosen {
			d.tables[i].leave(o, now)
		}
	}
	if chosen < 0 {
		d.epoch++
		return d.add(registration{
			counter: def.Counter, number: d.freeNumber(), geometry: GeometryFor(def.Windows, def.Capacity),
			base: d.epoch, epoch: d.epoch, configuredNs: o.configuredNs,
			windows: def.Windows, owners: []owner{o},
		})
	}
	r := &d.tables[chosen]
	r.join(o)
	want := longestLogs(def.Windows, r.windows)
	if !sameWindows(r.windows, want) && r.configuredNs <= o.configuredNs {
		d.epoch++
		r.epoch = d.epoch
		r.windows = want
	}
	r.configuredNs = max(r.configuredNs, o.configuredNs)
	return r
}

// choose returns the index of the counter's table in which o shall count:
//
//  1. one that has these windows (the last, if there are several),
//  2. else the first that nobody but o owns: its windows will change,
//  3. else none, -1: o gets a new one.
func (d *directory) choose(o owner, def *Definition) int {
	chosen := -1
	for _, i := range d.tablesOf(def.Counter) {
		r := &d.tables[i]
		if r.foreign != nil {
			continue
		}
		if sameWindows(r.windows, def.Windows) || (chosen < 0 && !r.hasOthers(o)) {
			chosen = i
		}
	}
	return chosen
}

// sameWindows reports whether windows a and b count alike, with the same length of a log, and the same length
// of a hold or block. Then records need no change.
func sameWindows(a, b []limit.Window) bool {
	return slices.EqualFunc(a, b, func(v, w limit.Window) bool {
		return v.Same(w) && v.Units == w.Units && v.PeriodNs == w.PeriodNs
	})
}

// longestLogs returns want with logs that are no shorter than those in have, so
// that no unit is lost if a lowered limit is raised again.
func longestLogs(want, have []limit.Window) []limit.Window {
	out := slices.Clone(want)
	for i := range out {
		for _, w := range have {
			if w.Same(out[i]) {
				out[i].Units = max(out[i].Units, w.Units)
			}
		}
	}
	return out
}

// longestNs is the longest period of the windows.
func longestNs(windows []limit.Window) int64 {
	var ns int64
	for _, w := range windows {
		ns = max(ns, w.PeriodNs)
	}
	return ns
}
