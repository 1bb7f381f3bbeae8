package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A lease table holds what this proxy has leased of each key of a rule of scope cluster, see package leased. It
// is a table whose only column is a lease, so it is registered, placed and re-used
// as other tables are. The units of a grant are deducted at the quota service before they get here, so a record that is
// lost, evicted or unreadable only costs them, and a page has no floor. Those that are Uncharged are not counted
// anywhere else: without the record the service never hears of them. So Clean keeps such a record, and makeRoom takes
// it last.
//
//	Read, ReadHashed, Reread  the page is loaded, and the key's record is decoded into LeaseEntry.Lease
//	                          (if there is none, an empty Lease)
//	the caller                changes LeaseEntry.Lease: Spend, Put, ...
//	Write                     the lease is encoded into its slot, a free one, or that of another record (makeRoom,
//	                          Replaced), and the page is written in one compare-and-swap
//
// Of the other files it uses the registration of tables, and a loadedPage. They know of leases in one place, for
// visits: see visited (operate.go).

// leaseWaitNs is how long the number of a vanished lease table waits until it is
// used again.
const leaseWaitNs = 2 * quota.MaxLeaseNs

// LeaseTable is the lease table of a counter.
type LeaseTable struct {
	table       *Table
	windowsHash uint64 // of what makes windows the same
}

// LeaseTable returns the lease table of a counter with that many windows. windowsHash is a
// hash of what makes windows the same: units that were counted in others are not
// found again.
func (ts *Tables) LeaseTable(counter CounterID, windowsHash uint64, windows int, capacity uint32) *LeaseTable {
	return &LeaseTable{windowsHash: windowsHash, table: ts.Table(Definition{
		Counter: counter, Windows: []limit.Window{leaseWindow(windows)}, Capacity: capacity,
	})}
}

// Table is the leases' table, for those who count and clean its pages. Rules that share a counter have the same one.
func (l *LeaseTable) Table() *Table { return l.table }

// LeaseEntry is one key's record in a lease table, as LeaseTable.Read found it. Change
// Lease and call Write.
type LeaseEntry struct {
	leased.Lease
	// Replaced is how many units are lost with Write: those in another key's record, if Write takes its slot, and those
	// of a stranded grant, if Put has taken its place. Reread finds a record of another key that has the same hash. If
	// the page is full, Write chooses one.
	Replaced uint32

	// WrittenNs is when the record was last written, 0 if there is none.
	WrittenNs int64
	// NowNs is the monotonic clock of the last read: that of its caller, or a later one. See Reread.
	NowNs int64

	loadedPage     // of the key
	slot       int // of the key's record in the page, or noRecord
	key        LeaseKey
}

// Read finds the key's lease. wallNs is the wall clock, for the directory, and
// nowNs the monotonic clock. If it fails, e must be read again: it may have the lease of the key before.
func (l *LeaseTable) Read(e *LeaseEntry, key []byte, wallNs, nowNs int64) Status {
	if status := l.table.openFor(&e.loadedPage, wallNs); status != OK {
		return status
	}
	return l.ReadHashed(e, l.leaseKeyOf(key), wallNs, nowNs)
}

// LeaseKey is a key as a lease table knows it: by hashes of its bytes.
type LeaseKey struct {
	hash     uint64 // finds the record
	identity uint64 // lies in the record, so that neither another key of that hash nor other windows use its units
}

func (l *LeaseTable) leaseKeyOf(key []byte) LeaseKey {
	hash, identity := l.table.parent.seed.hash128(key)
	return LeaseKey{hash, identity ^ l.windowsHash}
}

// Key returns the entry's key.
func (e *LeaseEntry) Key() LeaseKey { return e.key }

// ReadHashed is Read of a key that was hashed before.
func (l *LeaseTable) ReadHashed(e *LeaseEntry, key LeaseKey, wallNs, nowNs int64) Status {
	e.key = key
	return l.Reread(e, wallNs, nowNs)
}

// Reread is Read of the same key as before. If it fails, the lease is empty. A record that was written long after nowNs
// is read by the clock as it is then: the worker may have stood still since it read it. If it still is, it is of an
// earlier start of the clock, and counts as none.
func (l *LeaseTable) Reread(e *LeaseEntry, wallNs, nowNs int64) Status {
	t := l.table
	e.NowNs = nowNs
	e.Replaced = 0
	e.WrittenNs = 0
	e.Lease = leased.Lease{Standings: e.Standings[:0]}
	if status := t.load(&e.loadedPage, e.key.hash, wallNs); status != OK {
		return status
	}
	e.slot = e.page.Find(fingerprint(e.key.hash))
	if e.slot < 0 {
		return OK
	}
	written := e.page.Time(e.slot)
	if isOfEarlierStart(written, e.NowNs) {
		e.NowNs = t.parent.store.Monotonic()
	}
	if isOfEarlierStart(written, e.NowNs) {
		return OK
	}
	b := e.page.Lease(e.slot)
	if leased.Identity(b) != e.key.identity { // another key of that hash, or other windows: Write takes the slot
		e.Replaced = leftOf(b, e.NowNs)
		return OK
	}
	e.WrittenNs = written
	e.Decode(b)
	return OK
}

// isOfEarlierStart reports whether a record was written long after the present: the
// monotonic clock has started anew since.
func isOfEarlierStart(writtenNs, nowNs int64) bool { return writtenNs > nowNs+quota.MaxLeaseNs }

// KeepTime has Write leave the time of the record as it is: what changes the lease is no use of it.
func (e *LeaseEntry) KeepTime() { e.NowNs = e.WrittenNs }

// Put adds units of a grant to the lease, and counts those that are stranded as Replaced. Write counts anew only for a
// new record, which has none. It is not ok if there is no place for the grant.
func (e *LeaseEntry) Put(added leased.GrantUnits) (ok bool) {
	stranded, ok := e.Lease.Put(e.NowNs, added)
	e.Replaced += stranded
	return ok
}

// Write stores the lease. It returns Mismatch if another worker wrote first: Reread. A new record may take the place of
// another key's: see makeRoom.
func (l *LeaseTable) Write(e *LeaseEntry) Status {
	t := l.table
	if status := t.startChange(&e.loadedPage); status != OK {
		return status
	}
	if e.slot < 0 {
		e.slot, e.Replaced = e.makeRoom()
		e.page.Place(e.slot, fingerprint(e.key.hash), e.NowNs)
	}
	e.page.SetTime(e.slot, e.NowNs)
	e.Encode(e.page.Lease(e.slot), e.key.identity)
	return t.write(&e.loadedPage)
}

// makeRoom returns a slot for a new record: a free one, or if the page is full, that of the record whose loss costs
// least. lost is how many units that has to spend.
func (e *LeaseEntry) makeRoom() (room int, lost uint32) {
	if slot := e.page.FreeSlot(); slot >= 0 {
		return slot, 0
	}
	var least leaseCost
	for slot := range e.page.Layout.Slots {
		cost := e.costOf(slot)
		if slot == 0 || cost.less(&least) {
			room = slot
			least = cost
		}
	}
	return room, least.left
}

// leaseCost is what the loss of a record costs.
type leaseCost struct {
	uncharged uint32 // the limit: so many units are never counted
	left      uint32 // units that nobody can spend
	writtenNs int64  // of equal ones, the oldest costs least
}

func (c *leaseCost) less(than *leaseCost) bool {
	switch {
	case c.uncharged != than.uncharged:
		return c.uncharged < than.uncharged
	case c.left != than.left:
		return c.left < than.left
	}
	return c.writtenNs < than.writtenNs
}

// costOf is what the loss of the slot's record costs. One of an earlier start of the clock costs nothing.
func (e *LeaseEntry) costOf(slot int) leaseCost {
	written := e.page.Time(slot)
	if isOfEarlierStart(written, e.NowNs) {
		return leaseCost{}
	}
	var l leased.Lease
	l.Decode(e.page.Lease(slot)[:leased.HeadBytes])
	return leaseCost{l.Uncharged.Units, l.Left(e.NowNs), written}
}

// leftOf is Lease.Left of a lease's bytes.
func leftOf(b []byte, nowNs int64) (units uint32) {
	var l leased.Lease
	l.Decode(b[:leased.HeadBytes])
	return l.Left(nowNs)
}

// leaseWouldBeMissed reports whether the slot's lease says something that would be missed: as long as it does, it does
// not expire.
func (p *loadedPage) leaseWouldBeMissed(slot int, nowNs int64) bool {
	var l leased.Lease
	l.Decode(p.page.Lease(slot)[:leased.HeadBytes])
	return !isOfEarlierStart(p.page.Time(slot), nowNs) && l.WouldBeMissed(nowNs)
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
