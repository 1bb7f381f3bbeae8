package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A lease table holds what this proxy has leased of each key of a cluster rule. It
// is a table whose only column is a lease, so it is registered, placed and re-used
// as other tables are. Nothing in it counts against a limit: units are deducted at
// the quota service before they get here. So a record that is lost, evicted or
// unreadable only costs units, and a page has no floor.
//
//	Read, ReadHashed, Reread  the page is loaded, and the key's record is decoded into LeaseEntry.Lease
//	                          (none: an empty Lease; FromFuture: as if none)
//	the caller                changes LeaseEntry.Lease: Spend, Put, ...
//	Write                     the lease is encoded into its slot, a free one, or that of the record
//	                          with fewest units (Replaced), and the page is written in one compare-and-swap

const (
	// MaxLeaseNs is the longest lease.
	MaxLeaseNs = 10_000_000_000
	// MaxLeaseGrants is how many grants a record holds units of. Each goes back only on
	// the stream that got it, and each worker has its own stream.
	MaxLeaseGrants = 4
	// strandedNs is how long after a grant's end its worker has returned the rest at
	// the latest, unless its stream has ended.
	strandedNs = 2_000_000_000
	// leaseWaitNs is how long the number of a vanished lease table waits until it is
	// used again.
	leaseWaitNs = 2 * MaxLeaseNs
)

// Leases is the lease table of a counter.
type Leases struct {
	table       *Table
	windowsHash uint64 // of what makes windows the same
}

// Leases returns the lease table of a counter with that many windows. windowsHash is a
// hash of what makes windows the same: units that were counted in others are not
// found again.
func (ts *Tables) Leases(counter CounterID, windowsHash uint64, windows int, capacity uint32) *Leases {
	return &Leases{windowsHash: windowsHash, table: ts.Table(Definition{
		Counter: counter, Windows: []limit.Window{leaseWindow(windows)}, Capacity: capacity,
	})}
}

// Table is the leases' table, for those who count and clean its pages. Rules that share a counter have the same one.
func (l *Leases) Table() *Table { return l.table }

// LeaseEntry is one key's record in a lease table, as Leases.Read found it. Change
// Lease and call Write.
type LeaseEntry struct {
	Lease
	// Replaced is how many units are lost with Write: those of another key's record whose slot it takes, and those that
	// are stranded whose place Put has taken. Reread finds such a record if it has the same hash, and Write if the page
	// is full.
	Replaced uint32

	// WrittenNs is when the record was last written, 0 if there is none.
	WrittenNs int64
	// FromFuture says that the record was written long after NowNs and was not decoded: it is of
	// an earlier start of the clock, or the worker has stood still since it read its own.
	FromFuture bool

	// NowNs is the monotonic clock of the last read.
	NowNs int64

	loadedPage     // of the key
	slot       int // of the key's record in the page, or noRecord
	key        LeaseKey
}

// Read finds the key's lease. wallNs is the wall clock, for the directory, and
// nowNs the monotonic clock.
func (l *Leases) Read(e *LeaseEntry, key []byte, wallNs, nowNs int64) Status {
	if status := l.table.ensureOpen(wallNs); status != OK {
		return status
	}
	return l.ReadHashed(e, l.leaseKeyOf(key), wallNs, nowNs)
}

// LeaseKey is a key as a lease table knows it: by hashes of its bytes.
type LeaseKey struct {
	hash     uint64 // finds the record
	identity uint64 // lies in the record, so that neither another key of that hash nor other windows use its units
}

func (l *Leases) leaseKeyOf(key []byte) LeaseKey {
	hash, identity := l.table.parent.seed.hash128(key)
	return LeaseKey{hash, identity ^ l.windowsHash}
}

// Key returns the entry's key.
func (e *LeaseEntry) Key() LeaseKey { return e.key }

// ReadHashed is Read of a key that was hashed before.
func (l *Leases) ReadHashed(e *LeaseEntry, key LeaseKey, wallNs, nowNs int64) Status {
	e.key = key
	return l.Reread(e, wallNs, nowNs)
}

// Reread is Read of the same key as before. If it fails, the lease is empty.
func (l *Leases) Reread(e *LeaseEntry, wallNs, nowNs int64) Status {
	t := l.table
	e.NowNs = nowNs
	e.Replaced = 0
	e.WrittenNs = 0
	e.FromFuture = false
	e.Lease = Lease{Standings: e.Standings[:0]}
	if status := t.load(&e.loadedPage, e.key.hash, wallNs); status != OK {
		return status
	}
	e.slot = e.page.Find(fingerprint(e.key.hash))
	if e.slot < 0 {
		return OK
	}
	written := e.page.Time(e.slot)
	if isOfEarlierStart(written, nowNs) {
		e.FromFuture = true
		return OK
	}
	b := e.page.Lease(e.slot)
	if le.Uint64(b) != e.key.identity { // another key of that hash, or other windows: Write takes the slot
		e.Replaced = leftOf(b, nowNs)
		return OK
	}
	e.WrittenNs = written
	e.decode(b)
	return OK
}

// isOfEarlierStart reports whether a record was written long after the present: the
// monotonic clock has started anew since.
func isOfEarlierStart(writtenNs, nowNs int64) bool { return writtenNs > nowNs+MaxLeaseNs }

// Put adds units of a grant to the lease, and counts those that are stranded as Replaced. Write counts anew only for a
// new record, which has none. It is not ok if there is no place for the grant.
func (e *LeaseEntry) Put(added GrantLeft) (ok bool) {
	stranded, ok := e.put(e.NowNs, added)
	e.Replaced += stranded
	return ok
}

// Write stores the lease. It returns Mismatch if another worker wrote first: Reread.
// If the page is full, it drops the record that holds fewest units, of several the
// oldest.
func (l *Leases) Write(e *LeaseEntry) Status {
	t := l.table
	if status := t.startChange(&e.loadedPage); status != OK {
		return status
	}
	if e.slot < 0 {
		l.takeSlot(e)
	}
	e.page.SetTime(e.slot, e.NowNs)
	b := e.page.Lease(e.slot)
	le.PutUint64(b, e.key.identity)
	e.encode(b)
	return t.write(&e.loadedPage)
}

// takeSlot gives the entry a slot.
func (l *Leases) takeSlot(e *LeaseEntry) {
	slot := e.page.FreeSlot()
	e.Replaced = 0
	if slot < 0 {
		slot, e.Replaced = l.smallest(e)
	}
	e.page.Place(slot, fingerprint(e.key.hash))
	e.slot = slot
}

// smallest returns the slot of a full page whose record holds fewest units, and how many.
// Of several it is the oldest. A record of an earlier start of the clock holds nothing.
func (l *Leases) smallest(e *LeaseEntry) (smallest int, fewest uint32) {
	layout := l.table.layout
	oldest := int64(0)
	for slot := range layout.Slots {
		units := leftOf(e.page.Lease(slot), e.NowNs)
		written := e.page.Time(slot)
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
	l.decode(b[:page.LeaseBytes])
	return l.Left(nowNs)
}

// leaseExpiry is expiry of a lease. Its record does not expire while it says something that
// would be missed.
func (p *presentPage) leaseExpiry(slot int) int64 {
	var l Lease
	l.decode(p.page.Lease(slot)[:page.LeaseBytes])
	now := int64(p.leaseNs)
	if !isOfEarlierStart(p.page.Time(slot), now) && l.isMissed(now) {
		return math.MaxInt64
	}
	return 0
}

// leaseWindow is the column of a lease table for keys with that many windows.
func leaseWindow(windows int) limit.Window {
	return limit.Window{
		Algorithm: page.Lease,
		PeriodNs:  leaseWaitNs,     // only the directory reads it: how long the table of a vanished counter waits
		Units:     uint16(windows), // how many standings a lease has
	}
}

// LeaseGeometry returns the geometry of a lease table.
func LeaseGeometry(windows int, capacity uint32) page.Geometry {
	return page.GeometryFor([]limit.Window{leaseWindow(windows)}, capacity)
}

// LeaseHostBytes is an upper bound of the memory that a lease table takes in
// Envoy, in bytes.
func LeaseHostBytes(windows int, capacity uint32) uint64 {
	return page.HostBytes([]limit.Window{leaseWindow(windows)}, capacity)
}

// Lease is what this proxy has of one key of a cluster rule: units of up to four grants, and what
// the service last said of the key. The zero value has nothing.
type Lease struct {
	Grants [MaxLeaseGrants]GrantLeft

	denial        Denial    // the last one: see Deny, Block and Denies
	SilentUntilNs int64     // until when the service cannot reach the key
	Uncharged     Uncharged // what this proxy has admitted without the service

	Rate      Rate
	Standings []LeaseStanding
}

// GrantID says which grant of the service.
type GrantID struct {
	Stream uint32 // on which the grant came
	Number uint32 // of the grant on its stream
}

// GrantLeft is what is left of a grant.
type GrantLeft struct {
	GrantID
	Units uint32
	EndNs int64 // units may be spent before it
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

// Spend spends units, first those of the grant that ends first. It returns that grant: if all units are put back
// into it, none of them can be spent after its end. At least so many must be left.
func (l *Lease) Spend(nowNs int64, units uint32) (from GrantLeft) {
	for spent := uint32(0); spent < units; {
		first := l.endsFirst(nowNs)
		if spent == 0 {
			from = *first
		}
		n := min(units-spent, first.Units)
		first.Units -= n
		spent += n
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

// put adds units of a grant to what is left of it, or else takes a free place for them. If there is
// none, it takes the place of a stranded grant: its end is long over, so its stream must have ended
// too, or its worker would have returned the rest. stranded is how many units that had.
func (l *Lease) put(nowNs int64, added GrantLeft) (stranded uint32, ok bool) {
	var room *GrantLeft // the first free place, else that of the first stranded grant
	for i := range l.Grants {
		g := &l.Grants[i]
		switch {
		case g.GrantID == added.GrantID:
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
	stranded = room.Units
	*room = added
	return stranded, true
}

// Denial is how long a denial holds. What it denies is by the verb that writes it: Deny denies a cost and what costs
// more, but never a cost of 0, and Block denies each cost.
type Denial struct {
	UntilNs int64 // until when it holds
	PassNs  int64 // when a denied hit passes, as the service knew it, or limit.Never

	cost uint32 // the smallest that is denied, or eachCost
}

// eachCost is the cost of a Denial that blocks.
const eachCost = 0

// Deny has the lease deny requests that cost so much or more, at least 1.
func (l *Lease) Deny(cost uint32, d Denial, nowNs int64) {
	d.cost = max(cost, eachCost+1)
	l.noteDenial(d, nowNs)
}

// Block has the lease deny all requests.
func (l *Lease) Block(d Denial, nowNs int64) {
	d.cost = eachCost
	l.noteDenial(d, nowNs)
}

// noteDenial writes a denial. If the one before is not over, the smaller cost of both is denied.
func (l *Lease) noteDenial(d Denial, nowNs int64) {
	if l.denial.UntilNs > nowNs {
		d.cost = min(d.cost, l.denial.cost)
	}
	l.denial = d
}

// Allow forgets a denial whose cost can be spent now, because the key has got units.
func (l *Lease) Allow(units uint32) {
	if l.denial.cost <= units {
		l.denial.UntilNs = 0
	}
}

// Denies reports whether the last denial still holds for so many units.
func (l *Lease) Denies(units uint32, nowNs int64) bool {
	return l.denial.UntilNs > nowNs && units >= l.denial.cost
}

// Blocks reports whether the last denial still holds, and is of a blocked key.
func (l *Lease) Blocks(nowNs int64) bool { return l.Denies(eachCost, nowNs) }

// WaitNs is how long a denied hit must wait, or limit.Never.
func (l *Lease) WaitNs(nowNs int64) int64 {
	if l.denial.PassNs == limit.Never {
		return limit.Never
	}
	return l.denial.PassNs - nowNs
}

// Uncharged are units that this proxy has admitted without the service, and that the service has not charged yet. One
// ask at a time tells them to the service, so that it charges them once. An ask for units ahead of need tells them too,
// so one instant lets only one of either be under way. The filter's lease/source.go draws their life.
type Uncharged struct {
	Units        uint32
	askedUntilNs int64 // until when no other ask tells them, nor asks ahead of need
}

// Add adds units that were admitted.
func (u *Uncharged) Add(units uint32) { u.Units = limit.AddSaturating(u.Units, units) }

// IsAsked reports whether an ask may be under way that tells the service the units.
func (u *Uncharged) IsAsked(nowNs int64) bool { return u.askedUntilNs > nowNs }

// Ask returns the units that an ask tells the service. None else tells them until untilNs, or until Answer.
func (u *Uncharged) Ask(untilNs int64) (spent uint32) {
	u.askedUntilNs = untilNs
	return u.Units
}

// Answer notes the end of an ask that has told the service so many units, and whether the service has charged them.
func (u *Uncharged) Answer(spent uint32, charged bool) {
	if spent >= u.Units { // else another ask may be telling the rest
		u.askedUntilNs = 0
	}
	if charged {
		u.Units -= min(u.Units, spent)
	}
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
// and of the one before the share that is less than a period ago. For example, 300 units were spent
// in one period, and 50 in the first third of the next: 50 and two thirds of 300 are 250.
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

// isMissed reports whether the lease has units that may be spent or returned, has units that
// the service has not charged yet, or says how long not to ask it.
func (l *Lease) isMissed(nowNs int64) bool {
	if l.Uncharged.Units > 0 || max(l.denial.UntilNs, l.Uncharged.askedUntilNs, l.SilentUntilNs) > nowNs {
		return true
	}
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Units > 0 && g.EndNs+strandedNs >= nowNs {
			return true
		}
	}
	return false
}

// The bytes of a lease in its record, little endian; instants are the proxy's monotonic clock:
//
//	  0  u64  which key and windows the lease is of
//	  8       4 × grant: u32 stream, u32 number, u32 units left, i64 end
//	 88  i64  until when a denial holds
//	 96  i64  when a denied hit passes, as the service knew it; -1 = never
//	104  u32  smallest cost denied; 0 = the key is blocked
//	108  i64  until when nobody else asks ahead, nor tells the units of 124
//	116  i64  until when the service cannot reach the key
//	124  u32  units admitted without the service, not charged by it yet
//	128  i64  start of the period of the rate
//	136  u32  units spent in this period
//	140  u32  and in the one before
//	144       n × standing: u32 used, i64 reset
const (
	grantBytes    = 3*4 + 8
	offGrants     = 8
	offDenied     = offGrants + MaxLeaseGrants*grantBytes
	offPass       = offDenied + 8
	offDeniedCost = offPass + 8
	offAsked      = offDeniedCost + 4
	offSilent     = offAsked + 8
	offUncharged  = offSilent + 8
	offRate       = offUncharged + 4
	offStandings  = offRate + 8 + 2*4 // of each window page.StandingBytes
)

// A lease without its standings has page.LeaseBytes: this does not compile if it has more or fewer.
var _ = [1]struct{}{}[offStandings-page.LeaseBytes]

func (l *Lease) decode(b []byte) {
	for i := range l.Grants {
		l.Grants[i].decode(b[offGrants+i*grantBytes:])
	}
	l.denial.UntilNs = int64(le.Uint64(b[offDenied:]))
	l.denial.PassNs = int64(le.Uint64(b[offPass:]))
	l.denial.cost = le.Uint32(b[offDeniedCost:])
	l.Uncharged.askedUntilNs = int64(le.Uint64(b[offAsked:]))
	l.SilentUntilNs = int64(le.Uint64(b[offSilent:]))
	l.Uncharged.Units = le.Uint32(b[offUncharged:])
	l.Rate.decode(b[offRate:])
	l.Standings = l.Standings[:0]
	for b = b[offStandings:]; len(b) >= page.StandingBytes; b = b[page.StandingBytes:] {
		l.Standings = append(l.Standings, LeaseStanding{le.Uint32(b), int64(le.Uint64(b[4:]))})
	}
}

func (l *Lease) encode(b []byte) {
	for i := range l.Grants {
		l.Grants[i].encode(b[offGrants+i*grantBytes:])
	}
	le.PutUint64(b[offDenied:], uint64(l.denial.UntilNs))
	le.PutUint64(b[offPass:], uint64(l.denial.PassNs))
	le.PutUint32(b[offDeniedCost:], l.denial.cost)
	le.PutUint64(b[offAsked:], uint64(l.Uncharged.askedUntilNs))
	le.PutUint64(b[offSilent:], uint64(l.SilentUntilNs))
	le.PutUint32(b[offUncharged:], l.Uncharged.Units)
	l.Rate.encode(b[offRate:])
	b = b[offStandings:]
	for i := 0; len(b) >= page.StandingBytes; i++ {
		var s LeaseStanding
		if i < len(l.Standings) {
			s = l.Standings[i]
		}
		le.PutUint32(b, s.Used)
		le.PutUint64(b[4:], uint64(s.ResetNs))
		b = b[page.StandingBytes:]
	}
}

func (g *GrantLeft) decode(b []byte) {
	*g = GrantLeft{
		GrantID: GrantID{Stream: le.Uint32(b), Number: le.Uint32(b[4:])},
		Units:   le.Uint32(b[8:]),
		EndNs:   int64(le.Uint64(b[12:])),
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
