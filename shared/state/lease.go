package state

import (
	"math"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A lease table holds what this proxy has leased of each key of a cluster rule. It
// is a table whose only column is a lease, so it is registered, placed and re-used
// as other tables are. Nothing in it counts against a limit: units are deducted at
// the quota service before they get here. So a record that is lost, evicted or
// unreadable only costs units, and a page has no floor.
//
// The usage of a lease, little endian; instants are the proxy's monotonic clock:
//
//	  0  u64  which key and windows the lease is of
//	  8       4 × grant: u32 stream, u32 number, u32 units left, i64 end
//	 88  i64  until when a denial holds
//	 96  i64  when a denied hit passes, as the service knew it; -1 = never
//	104  u32  smallest cost denied
//	108  i64  until when nobody else asks ahead
//	116  i64  until when the service cannot reach the key
//	124  u32  units admitted without the service, not counted by it yet
//	128  i64  start of the period of the rate
//	136  u32  units spent in this period
//	140  u32  and in the one before
//	144       n × standing: u32 used, i64 reset
const (
	algorithmLease = limit.Algorithm(64)
	leaseBytes     = 144
	grantBytes     = 20
	offGrants      = 8
	offDenied      = offGrants + MaxLeaseGrants*grantBytes
	offPass        = 96
	offDeniedCost  = 104
	offAsked       = 108
	offSilent      = 116
	offUncharged   = 124
	offRate        = 128
	standingBytes  = 12

	// MaxLeaseGrants is how many grants a record holds units of. Each goes back only on
	// the stream that got it, and each worker has its own stream.
	MaxLeaseGrants = 4
	// strandedNs is how long after a grant's end its worker has returned the rest at
	// the latest, unless its stream has ended.
	strandedNs = 2_000_000_000

	// leaseWaitNs is how long the number of a vanished lease table waits until it is
	// used again: a lease lasts 10 seconds.
	leaseWaitNs = 20_000_000_000
)

// MaxLeaseNs is the longest lease.
const MaxLeaseNs = 10_000_000_000

// leaseWindow is the column of a lease table for keys with that many windows.
func leaseWindow(windows int) limit.Window {
	return limit.Window{Algorithm: algorithmLease, PeriodNs: leaseWaitNs, Units: uint16(windows)}
}

// LeaseGeometry returns the geometry of a lease table.
func LeaseGeometry(windows int, capacity uint32) Geometry {
	return GeometryFor([]limit.Window{leaseWindow(windows)}, capacity)
}

// LeaseHostBytes is an upper bound of the memory that a lease table takes in
// Envoy, in bytes.
func LeaseHostBytes(windows int, capacity uint32) uint64 {
	return HostBytes([]limit.Window{leaseWindow(windows)}, capacity)
}

// Lease is what this proxy holds of one key. The zero value holds nothing.
type Lease struct {
	Grants [MaxLeaseGrants]GrantLeft

	// The last denial.
	DeniedNs   int64  // until when it holds
	PassNs     int64  // when a denied hit passes, as the service knew it; -1 = never
	DeniedCost uint32 // the smallest cost that was denied

	AskedNs   int64  // until when no other worker asks ahead
	SilentNs  int64  // until when the service cannot reach the key
	Uncharged uint32 // units admitted without the service, not counted by it yet

	Rate      Rate
	Standings []LeaseStanding
}

// GrantLeft is what is left of a grant.
type GrantLeft struct {
	Stream uint32 // on which the grant came
	Number uint32 // of the grant on its stream
	Units  uint32
	EndNs  int64 // units may be spent before it
}

// Same reports whether both are of one grant.
func (g *GrantLeft) Same(other *GrantLeft) bool {
	return g.Stream == other.Stream && g.Number == other.Number
}

// Left returns how many units may be spent.
func (l *Lease) Left(nowNs int64) (units uint32) {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.EndNs > nowNs {
			units = limit.AddSaturating(units, g.Units)
		}
	}
	return units
}

// Take spends units, first those of the grant that ends first. It returns the grant that
// the last of them were of. At least so many must be left.
func (l *Lease) Take(nowNs int64, units uint32) (from GrantLeft) {
	for units > 0 {
		first := l.endsFirst(nowNs)
		n := min(units, first.Units)
		first.Units -= n
		units -= n
		from = *first
	}
	return from
}

// endsFirst returns the grant with units that ends first.
func (l *Lease) endsFirst(nowNs int64) (first *GrantLeft) {
	for i := range l.Grants {
		g := &l.Grants[i]
		if g.Units > 0 && g.EndNs > nowNs && (first == nil || g.EndNs < first.EndNs) {
			first = g
		}
	}
	return first
}

// Put adds units of a grant. ok says that there was room; lost is how many units of
// an ended stream were dropped to make room.
func (l *Lease) Put(nowNs int64, added GrantLeft) (lost uint32, ok bool) {
	var room *GrantLeft
	for i := range l.Grants {
		g := &l.Grants[i]
		switch {
		case g.Same(&added):
			g.Units = limit.AddSaturating(g.Units, added.Units)
			return 0, true
		case g.Units == 0 && (room == nil || room.Units > 0):
			room = g
		case g.EndNs+strandedNs < nowNs && room == nil:
			room = g
		}
	}
	if room == nil {
		return 0, false
	}
	lost = room.Units
	*room = added
	return lost, true
}

// LeaseStanding is how one window stands over all proxies, as the service last said.
type LeaseStanding struct {
	Used    uint32
	ResetNs int64 // monotonic
}

// Rate is how many units were spent in the period that began at FromNs, and in the
// one before it.
type Rate struct {
	FromNs      int64
	Now, Before uint32
}

// Over estimates how many units were spent in the last period: all of the current one's,
// and of the one before the share that is less than a period ago.
func (r *Rate) Over(nowNs, periodNs int64) uint32 {
	switch passed := nowNs - r.FromNs; {
	case passed < periodNs:
		before := uint64(r.Before) * uint64(periodNs-passed) / uint64(periodNs)
		return limit.AddSaturating(r.Now, uint32(before))
	case passed < 2*periodNs:
		return uint32(uint64(r.Now) * uint64(2*periodNs-passed) / uint64(periodNs))
	}
	return 0
}

// Spend adds units to the rate.
func (r *Rate) Spend(nowNs, periodNs int64, units uint32) {
	switch passed := nowNs - r.FromNs; {
	case passed < periodNs:
	case passed < 2*periodNs:
		*r = Rate{FromNs: r.FromNs + periodNs, Before: r.Now}
	default:
		*r = Rate{FromNs: nowNs}
	}
	r.Now = limit.AddSaturating(r.Now, units)
}

// Refill says when a key's next units are asked for: when the units left last less than
// LeadNs at the rate that the key has over RateNs.
type Refill struct{ RateNs, LeadNs int64 }

// IsDue reports whether the time has come.
func (r *Refill) IsDue(left, rate uint32) bool {
	return uint64(left)*uint64(r.RateNs) < uint64(rate)*uint64(r.LeadNs)
}

func (l *Lease) decode(b []byte) {
	for i := range l.Grants {
		l.Grants[i].decode(b[offGrants+i*grantBytes:])
	}
	l.DeniedNs = int64(le.Uint64(b[offDenied:]))
	l.PassNs = int64(le.Uint64(b[offPass:]))
	l.DeniedCost = le.Uint32(b[offDeniedCost:])
	l.AskedNs = int64(le.Uint64(b[offAsked:]))
	l.SilentNs = int64(le.Uint64(b[offSilent:]))
	l.Uncharged = le.Uint32(b[offUncharged:])
	l.Rate.decode(b[offRate:])
	l.Standings = l.Standings[:0]
	for b = b[leaseBytes:]; len(b) >= standingBytes; b = b[standingBytes:] {
		l.Standings = append(l.Standings, LeaseStanding{le.Uint32(b), int64(le.Uint64(b[4:]))})
	}
}

func (l *Lease) encode(b []byte) {
	for i := range l.Grants {
		l.Grants[i].encode(b[offGrants+i*grantBytes:])
	}
	le.PutUint64(b[offDenied:], uint64(l.DeniedNs))
	le.PutUint64(b[offPass:], uint64(l.PassNs))
	le.PutUint32(b[offDeniedCost:], l.DeniedCost)
	le.PutUint64(b[offAsked:], uint64(l.AskedNs))
	le.PutUint64(b[offSilent:], uint64(l.SilentNs))
	le.PutUint32(b[offUncharged:], l.Uncharged)
	l.Rate.encode(b[offRate:])
	b = b[leaseBytes:]
	for i := 0; len(b) >= standingBytes; i++ {
		var s LeaseStanding
		if i < len(l.Standings) {
			s = l.Standings[i]
		}
		le.PutUint32(b, s.Used)
		le.PutUint64(b[4:], uint64(s.ResetNs))
		b = b[standingBytes:]
	}
}

func (g *GrantLeft) decode(b []byte) {
	*g = GrantLeft{
		Stream: le.Uint32(b),
		Number: le.Uint32(b[4:]),
		Units:  le.Uint32(b[8:]),
		EndNs:  int64(le.Uint64(b[12:])),
	}
}

func (g *GrantLeft) encode(b []byte) {
	le.PutUint32(b, g.Stream)
	le.PutUint32(b[4:], g.Number)
	le.PutUint32(b[8:], g.Units)
	le.PutUint64(b[12:], uint64(g.EndNs))
}

func (r *Rate) decode(b []byte) {
	*r = Rate{FromNs: int64(le.Uint64(b)), Now: le.Uint32(b[8:]), Before: le.Uint32(b[12:])}
}

func (r *Rate) encode(b []byte) {
	le.PutUint64(b, uint64(r.FromNs))
	le.PutUint32(b[8:], r.Now)
	le.PutUint32(b[12:], r.Before)
}

// LeaseEntry is one key's record in a lease table, as Leases.Read found it. Change
// Lease and call Write.
type LeaseEntry struct {
	Lease
	Lost uint32 // units that Write has dropped with another record

	// WrittenNs is when the record was last written, 0 if there is none.
	WrittenNs int64
	// Newer says that the record was written long after nowNs and was not read: it is of
	// an earlier start of the clock, or the worker has stood still since it read its own.
	Newer bool

	// NowNs is the monotonic clock of the last read.
	NowNs int64

	entry Entry
	key   LeaseKey
}

// Leases is the lease table of a counter.
type Leases struct {
	table  *Table
	layout uint64
}

// Leases returns the lease table of a counter with that many windows. layout is a
// hash of what makes windows the same: units that were counted in others are not
// found again.
func (ts *Tables) Leases(counter CounterID, layout uint64, windows int, capacity uint32) *Leases {
	return &Leases{layout: layout, table: ts.Table(Definition{
		Counter: counter, Windows: []limit.Window{leaseWindow(windows)}, Capacity: capacity,
	})}
}

// Table is the leases' table; it is for comparing and for its memory.
func (l *Leases) Table() *Table { return l.table }

// Read finds the key's lease. wallNs is the wall clock, for the directory, and
// nowNs the monotonic clock.
func (l *Leases) Read(e *LeaseEntry, key []byte, wallNs, nowNs int64) Status {
	if status := l.table.ensureRegistered(wallNs); status != OK {
		return status
	}
	return l.ReadKey(e, l.leaseKeyOf(key), wallNs, nowNs)
}

// LeaseKey is a key as a lease table knows it: by hashes of its bytes.
type LeaseKey struct {
	hash uint64 // finds the record
	of   uint64 // lies in the record, so that neither another key of that hash nor other windows use its units
}

func (l *Leases) leaseKeyOf(key []byte) LeaseKey {
	hash, of := siphash.Hash128(l.table.parent.seed[0], l.table.parent.seed[1], key)
	return LeaseKey{hash, of ^ l.layout}
}

// Key returns the entry's key.
func (e *LeaseEntry) Key() LeaseKey { return e.key }

// ReadKey is Read of a key that was hashed before.
func (l *Leases) ReadKey(e *LeaseEntry, key LeaseKey, wallNs, nowNs int64) Status {
	e.key = key
	e.entry.hash = key.hash
	return l.Reread(e, wallNs, nowNs)
}

// Reread is Read of the same key as before.
func (l *Leases) Reread(e *LeaseEntry, wallNs, nowNs int64) Status {
	t := l.table
	if status := t.load(&e.entry, wallNs); status != OK {
		return status
	}
	e.NowNs = nowNs
	e.Lost = 0
	e.WrittenNs = 0
	e.Newer = false
	e.Lease = Lease{Standings: e.Standings[:0]}
	e.entry.slot = e.entry.page.find(&t.layout, e.entry.fingerprint)
	if e.entry.slot < 0 {
		return OK
	}
	written := e.entry.page.time(&t.layout, e.entry.slot)
	if isOfEarlierStart(written, nowNs) {
		e.Newer = true
		return OK
	}
	b := e.entry.page.lease(&t.layout, e.entry.slot)
	if le.Uint64(b) != e.key.of {
		e.Lost = leftOf(b, nowNs)
		return OK
	}
	e.WrittenNs = written
	e.decode(b)
	return OK
}

// isOfEarlierStart reports whether a record was written long after the present: the
// monotonic clock has started anew since.
func isOfEarlierStart(writtenNs, nowNs int64) bool { return writtenNs > nowNs+MaxLeaseNs }

// Write stores the lease. It returns Mismatch if another worker wrote first: Reread.
// If the page is full, it drops the record that holds fewest units, of several the
// oldest.
func (l *Leases) Write(e *LeaseEntry) Status {
	t := l.table
	if e.entry.epoch != t.epoch {
		return Mismatch
	}
	e.entry.unshare()
	if e.entry.slot < 0 {
		l.findSlot(e)
	}
	e.entry.page.setTime(&t.layout, e.entry.slot, e.NowNs)
	b := e.entry.page.lease(&t.layout, e.entry.slot)
	le.PutUint64(b, e.key.of)
	e.encode(b)
	return t.write(&e.entry)
}

// findSlot gives the entry a slot.
func (l *Leases) findSlot(e *LeaseEntry) {
	t := l.table
	slot := t.freeSlot(&e.entry)
	e.Lost = 0
	if slot < 0 {
		slot, e.Lost = l.smallest(e)
	}
	e.entry.page.place(&t.layout, slot, e.entry.fingerprint)
	e.entry.slot = slot
}

// smallest returns the slot of a full page whose record holds fewest units, and how many.
// Of several it is the oldest. A record of an earlier start of the clock holds nothing.
func (l *Leases) smallest(e *LeaseEntry) (smallest int, fewest uint32) {
	layout := &l.table.layout
	oldest := int64(0)
	for slot := range layout.Slots {
		units := leftOf(e.entry.page.lease(layout, slot), e.NowNs)
		written := e.entry.page.time(layout, slot)
		if isOfEarlierStart(written, e.NowNs) {
			units = 0
			written = 0
		}
		if slot == 0 || units < fewest || units == fewest && written < oldest {
			smallest = slot
			fewest = units
			oldest = written
		}
	}
	return smallest, fewest
}

// leftOf is Lease.Left of a lease's bytes.
func leftOf(b []byte, nowNs int64) (units uint32) {
	var l Lease
	l.decode(b[:leaseBytes])
	return l.Left(nowNs)
}

// lease returns the bytes of the slot's lease.
func (b page) lease(l *Layout, slot int) []byte { return b.record(l, slot)[recordHeadBytes:] }

// leaseExpiry is expiry of a lease. Its record does not expire while it says something that
// would be missed.
func (t *Table) leaseExpiry(e *Entry, slot int) int64 {
	var l Lease
	l.decode(e.page.lease(&t.layout, slot)[:leaseBytes])
	ahead := isOfEarlierStart(e.page.time(&t.layout, slot), e.monotonicNs)
	if !ahead && l.isMissed(e.monotonicNs) {
		return math.MaxInt64
	}
	return 0
}

// isMissed reports whether the lease has units that may be spent or returned, has units that
// the service has not counted yet, or says how long not to ask it.
func (l *Lease) isMissed(nowNs int64) bool {
	if l.Uncharged > 0 || max(l.DeniedNs, l.AskedNs, l.SilentNs) > nowNs {
		return true
	}
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Units > 0 && g.EndNs+strandedNs >= nowNs {
			return true
		}
	}
	return false
}
