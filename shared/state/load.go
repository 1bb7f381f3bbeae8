package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A page is loaded into a worker's memory, brought to the present there, changed, and written in one compare-and-swap.
// Three types have such a page, each with what the one before has:
//
//	workingPage  the page, and how it is written. A LeaseEntry needs no more
//	loaded       what it takes to judge and evict any of its records: clocks, and the rule's limits. A visit
//	             (operate.go) loads one page after the other, without a key
//	Entry        one key: its record, limits and usage
//
// A function takes the smallest that it needs. So one that takes an Entry is about its key, and one that takes a loaded
// is about the page, or the record in some slot of it. A method is a Table's if it needs the layout, the columns or the
// store, and else is of the type that it reads.

// workingPage is a page in a worker's memory.
type workingPage struct {
	pageKey [15]byte // in shared data
	page    page.Page
	missing bool // the page does not exist yet: page is the table's empty one, which startChange copies
	cas     uint32
	epoch   uint32 // of the table at that time, or noEpoch
}

// loaded is a page with all that it takes to judge and evict its records.
type loaded struct {
	workingPage

	// clock.go says which clock counts what.
	Now      int64     // at which the key is counted: never before the last write
	CallerNs int64     // the caller's clock, as settleClock left it
	heldNs   HeldTime  // if the table holds
	leaseNs  leaseTime // if it is a lease table, which is visited; it has none of the others

	rule columnWindows // with the rule's limits

	pageMemory pageMemory
}

// noEpoch is the epoch of an Entry after a Look: no table has it, so nothing may be written.
const noEpoch uint32 = math.MaxUint32

// pageMemory is kept from page to page so that a decision allocates nothing. It carries no result from one to the next.
type pageMemory struct {
	rule     [page.MaxWindows]limit.Window // for loaded.rule
	otherLog logMemory                     // the log of any record
	lapses   lapses                        // all lists of lapses, one behind the other, until the next page is read
}

// logMemory is memory for one log. Who passes it to a function that decodes a log is done with the one before.
type logMemory []int64

// pageOf returns the index of the page that a key's hash leads to, by its high bits.
func (t *Table) pageOf(hash uint64) uint32 { return uint32(hash >> 32 * uint64(t.pages) >> 32) }

// fingerprint is what a page has of a key's hash: its low bits.
func fingerprint(hash uint64) uint32 { return uint32(hash) }

// load loads the page of the key with that hash, converted to the table's layout.
func (t *Table) load(p *workingPage, hash uint64, now int64) Status {
	if status := t.ensureOpen(now); status != OK {
		return status
	}
	for range MaxRetries {
		newer, status := t.loadPage(p, t.pageOf(hash))
		if !newer {
			return status
		}
		if status := t.adoptNewer(now); status != OK {
			return status
		}
	}
	return Failed
}

// loadPage loads the page with that index by the layout that the table has. If the page has newer windows, it only
// reports so: adoptNewer, and load it again.
func (t *Table) loadPage(p *workingPage, index uint32) (newer bool, status Status) {
	p.pageKey = t.pageKey(index)
	value, cas, status := t.parent.store.Get(p.pageKey[:])
	switch status {
	case OK:
		p.page, newer, status = t.convertIn(value)
		p.missing = false
		p.cas = cas
	case NotFound:
		p.page = t.empty
		p.missing = true
		p.cas = CreateOnly
		status = OK
	default:
		return false, Failed
	}
	p.epoch = t.epoch
	return newer, status
}

// adoptNewer reads the directory again, because a page is of a later epoch than the table.
func (t *Table) adoptNewer(now int64) Status {
	before := t.epoch
	if status := t.parent.registerAndAdopt(now, []*Table{t}); status != OK {
		return status
	}
	if t.epoch == before { // the directory does not know the page's epoch
		return Failed
	}
	return OK
}

// convertIn converts a page that comes in to the table's layout. A newer page is of a later epoch than the table, and
// stays as it is.
func (t *Table) convertIn(value []byte) (converted page.Page, newer bool, status Status) {
	if same, ok := t.empty.ReadLike(value); ok {
		return same, false, OK
	}
	old, ok := page.Read(value)
	if !ok {
		return page.Page{}, false, Failed
	}
	switch epoch := old.Epoch(); {
	case epoch > t.epoch:
		return page.Page{}, true, OK
	case epoch < t.base: // the page of a vanished counter
		return page.New(t.layout, t.epoch), false, OK
	case epoch == t.epoch: // an epoch has one layout, and the page has another: it is damaged
		return page.Page{}, false, Failed
	default:
		return old.Convert(t.layout, t.epoch), false, OK
	}
}

// startChange is the first step of all that writes the page of a key. It returns Mismatch if the table's windows have
// changed since the page was loaded, or after a Look.
//
// A page that does not exist yet becomes one of its own: until then, all keys of such pages share an empty one. Two
// others do without it: Read has nothing to bring to the present in an empty page, and a visit passes pages over that
// do not exist, and writes the others as soon as they are loaded.
func (t *Table) startChange(p *workingPage) Status {
	if p.epoch != t.epoch {
		return Mismatch
	}
	if p.missing {
		p.page = p.page.Clone()
		p.missing = false
	}
	return OK
}

// write writes the page, unless another worker has written it since it was loaded.
func (t *Table) write(p *workingPage) Status {
	return t.parent.store.Set(p.pageKey[:], p.page.Bytes, p.cas)
}
