package directory

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Register returns the table in which o shall count: the one that choose finds, or else a new one. o leaves the
// counter's other tables. If it takes a new one and there are MaxTables, ok is false, and nothing has changed.
func (d *Directory) Register(o Owner, def *Definition, now int64) (r *Registration, ok bool) {
	chosen := d.choose(o, def)
	if chosen < 0 && len(d.Tables) >= MaxTables {
		return nil, false
	}
	for _, i := range d.TablesOf(def.Counter) {
		if i != chosen {
			d.Tables[i].leave(o, now)
		}
	}
	if chosen < 0 {
		return d.begin(o, def), true
	}
	r = &d.Tables[chosen]
	d.join(r, o, def.Windows)
	return r, true
}

// choose returns the index of the counter's table in which o shall count:
//
//  1. one that has these windows; the last, if there are several,
//  2. else the first that nobody but o owns: its windows will change,
//  3. else none, -1: o gets a new one.
func (d *Directory) choose(o Owner, def *Definition) int {
	same, own := -1, -1
	for _, i := range d.TablesOf(def.Counter) {
		r := &d.Tables[i]
		switch {
		case !r.IsKnown(): // what it counts is not known either
		case sameWindows(r.Windows, def.Windows):
			same = i
		case own < 0 && !r.hasOthers(o):
			own = i
		}
	}
	if same >= 0 {
		return same
	}
	return own
}

// begin adds a table for o's counter. It takes a number that nobody uses, and a new epoch: all pages that the number's
// table before has left in shared data are of earlier ones, so they are empty.
func (d *Directory) begin(o Owner, def *Definition) *Registration {
	d.Epoch++
	return d.add(Registration{
		Counter: def.Counter, Number: d.freeNumber(), Geometry: page.GeometryFor(def.Windows, def.Capacity),
		Base: d.Epoch, Epoch: d.Epoch, ConfiguredNs: o.ConfiguredNs,
		Windows: def.Windows, Owners: []Owner{o},
	})
}

// join has o count in the table r, which gets its windows unless a later configuration has chosen others.
func (d *Directory) join(r *Registration, o Owner, windows []limit.Window) {
	r.VanishedNs = 0
	r.addOwner(o)
	want := longestLogs(windows, r.Windows)
	if !sameWindows(r.Windows, want) && r.ConfiguredNs <= o.ConfiguredNs {
		d.Epoch++
		r.Epoch = d.Epoch
		r.Windows = want
	}
	r.ConfiguredNs = max(r.ConfiguredNs, o.ConfiguredNs)
}

func (r *Registration) addOwner(o Owner) {
	for i := range r.Owners {
		if p := &r.Owners[i]; p.ID == o.ID {
			p.ConfiguredNs = max(p.ConfiguredNs, o.ConfiguredNs)
			return
		}
	}
	r.Owners = append(r.Owners, o)
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

// hasOthers reports whether the table has an owner besides o.
func (r *Registration) hasOthers(o Owner) bool {
	return slices.ContainsFunc(r.Owners, func(p Owner) bool { return p.ID != o.ID })
}

// HasOwner reports whether the owner counts in the table.
func (r *Registration) HasOwner(id uint64) bool {
	return slices.ContainsFunc(r.Owners, func(p Owner) bool { return p.ID == id })
}

// HasOwner reports whether the owner has a table.
func (d *Directory) HasOwner(id uint64) bool {
	return slices.ContainsFunc(d.Tables, func(r Registration) bool { return r.HasOwner(id) })
}

// IsKnown reports whether this build knows all windows of the table.
func (r *Registration) IsKnown() bool { return r.foreign == nil }

// DropOwners removes owners from all tables, whichever their configurations are.
func (d *Directory) DropOwners(owners []uint64, now int64) {
	for i := range d.Tables {
		d.Tables[i].removeOwners(now, func(o Owner) bool { return slices.Contains(owners, o.ID) })
	}
}

// leave removes o, of this configuration or an older one, from the table.
func (r *Registration) leave(o Owner, now int64) {
	r.removeOwners(now, func(p Owner) bool { return p.ID == o.ID && p.ConfiguredNs <= o.ConfiguredNs })
}

// removeOwners removes owners from the table. If the last one goes, its counter has vanished.
func (r *Registration) removeOwners(now int64, goes func(Owner) bool) {
	r.Owners = slices.DeleteFunc(r.Owners, goes)
	if len(r.Owners) == 0 && r.VanishedNs == 0 {
		r.VanishedNs = max(now, 1)
	}
}

// LeaveAndSweep removes o from tables whose counter its configuration no longer has,
// unless a later configuration still has it. It removes tables that have waited long enough.
func (d *Directory) LeaveAndSweep(o Owner, keeps func(CounterID) bool, now int64) {
	for i := range d.Tables {
		if r := &d.Tables[i]; !keeps(r.Counter) {
			r.leave(o, now)
		}
	}
	d.sweep(now)
}

// sweep removes tables of whose records none counts any more (countsNs), and the first to vanish of more than
// WaitingTables.
func (d *Directory) sweep(now int64) {
	tables := slices.DeleteFunc(d.Tables, func(r Registration) bool {
		return r.waits() && now-r.VanishedNs >= r.countsNs()
	})
	stay := lastToVanish(tables)
	kept := tables[:0]
	for i := range tables {
		if !tables[i].waits() || slices.Contains(stay, i) {
			kept = append(kept, tables[i])
		}
	}
	d.setTables(kept)
}

// waits reports whether the table's counter has vanished. It goes by the owners: VanishedNs says since when.
func (r *Registration) waits() bool { return len(r.Owners) == 0 }

// lastToVanish returns the indexes of the WaitingTables last to vanish, in the order in which they did: of several at
// once, in that of the tables. It sorts no more than these, because there may be ten thousand
// tables.
func lastToVanish(tables []Registration) (last []int) {
	for i := range tables {
		if !tables[i].waits() {
			continue
		}
		last = append(last, i)
		for at := len(last) - 1; at > 0 && tables[last[at]].VanishedNs < tables[last[at-1]].VanishedNs; at-- {
			last[at-1], last[at] = last[at], last[at-1]
		}
		if len(last) > WaitingTables {
			last = append(last[:0], last[1:]...)
		}
	}
	return last
}

// countsNs is for how long after the last hit a table's records may count at most, as far as the directory knows:
//
//	windows                    at most         because
//	not known to this build    unboundedNs     a newer build's algorithm may count for long
//	a token bucket             unboundedNs     it counts until it is full, and the directory has no burst
//	beside a hold, each other  unboundedNs     it may owe what answers took beyond its limit, for many periods
//	a hold alone               two periods     a hold lapses up to an eighth later than its period
//	a sliding counter          two periods     the period before counts too
//	a block                    MaxBlockNs      it may have begun by a policy whose blocks were longer
//	others                     one period
func (r *Registration) countsNs() int64 {
	if !r.IsKnown() {
		return unboundedNs
	}
	var longest int64
	for i := range r.Windows {
		ns := r.Windows[i].PeriodNs
		switch r.Windows[i].Algorithm {
		case limit.TokenBucket:
			ns = unboundedNs
		case limit.Concurrency:
			ns *= 2
			if i > 0 { // it is the last window
				ns = unboundedNs
			}
		case limit.SlidingWindowCounter:
			ns *= 2
		case limit.Block:
			ns = limit.MaxBlockNs
		default:
		}
		longest = max(longest, ns)
	}
	return longest
}

// unboundedNs has a table wait until its counter comes back, or until WaitingTables others have vanished later. It is
// the longest time for which a usage counts.
const unboundedNs = limit.MaxFillNs

// How far ahead of the present a time in the directory may be, before the clock must have been set back since:
const (
	// RecordAheadNs is for records and floors, which count on as of their time; and for a table that vanished, so that it
	// waits until they count no more.
	RecordAheadNs = 10_000_000_000
	// configuredAheadNs is for a configuration: as much as the clocks of workers may differ, and not more. For example,
	// one was made at 12:00:00, the clock was set back, and its successor is made at 11:59:56. That outranks it, because
	// 12:00:00 is not believed then. If 10 s were allowed here, it would be, and the successor could not change the
	// windows.
	configuredAheadNs = 1_000_000_000
)

// ForgetFuture treats configurations that were made well after now as the oldest:
// the clock was set back since, and later configurations must outrank them. A counter
// that vanished then has vanished now.
func (d *Directory) ForgetFuture(now int64) {
	for i := range d.Tables {
		r := &d.Tables[i]
		r.ConfiguredNs = pastOrOldest(r.ConfiguredNs, now)
		if r.VanishedNs > now+RecordAheadNs {
			r.VanishedNs = max(now, 1)
		}
		for j := range r.Owners {
			r.Owners[j] = r.Owners[j].AsOf(now)
		}
	}
}

// AsOf is the owner as ForgetFuture leaves it.
func (o Owner) AsOf(now int64) Owner { return Owner{o.ID, pastOrOldest(o.ConfiguredNs, now)} }

func pastOrOldest(configuredNs, now int64) int64 {
	if configuredNs > now+configuredAheadNs {
		return 0
	}
	return configuredNs
}
