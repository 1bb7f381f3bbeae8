package account

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Book has the accounts of a worker.
type Book struct {
	worker uint64 // by which the service knows this worker: see SetWorker

	byName  map[name]*Account
	listed  []*Account // for Due, which passes over those that are not listed any more
	newest  uint64     // the number of the newest report
	sweepNs int64      // when Sweep goes through the accounts next
	memory  []byte     // for a name
}

// NewBook returns a book without accounts.
func NewBook() *Book { return &Book{byName: map[name]*Account{}} }

// SetWorker says by which number the service knows this worker, before the first account is opened. Each worker and
// configuration has another.
func (b *Book) SetWorker(worker uint64) { b.worker = worker }

// name is what an account is found by: counter and key, and for an inherited account also the
// worker that opened it, because the key may have an account of this worker too.
type name string

const (
	// forgetNs is how much longer than its timeout a request must not have wanted units of an idle account, before
	// the account is forgotten.
	forgetNs = 10_000_000_000
	// maxAccounts is how many keys a worker reports: if the service does not answer, each of
	// them stays. on_unavailable decides about one more.
	maxAccounts = 1 << 16
	// sweepEveryNs is how often Sweep goes through the accounts: within an eighth of the shortest
	// hold, which is 1.25 s.
	sweepEveryNs = 1_000_000_000
)

// IsFull reports whether the book takes no account more.
func (b *Book) IsFull() bool { return len(b.byName) >= maxAccounts }

// IsEmpty reports whether the book has no account.
func (b *Book) IsEmpty() bool { return len(b.byName) == 0 }

// nameOf is the name of a key's account, in memory that the next call uses.
func (b *Book) nameOf(d *quota.Definition, key [16]byte) []byte {
	b.memory = append(append(b.memory[:0], d.Counter[:]...), key[:]...)
	return b.memory
}

// Find returns the account of a key, nil if there is none.
func (b *Book) Find(d *quota.Definition, key [16]byte) *Account {
	return b.byName[name(b.nameOf(d, key))]
}

// Open returns the account of a key from which a request wants units, a new one if there is none.
func (b *Book) Open(d *quota.Definition, key [16]byte, now int64) *Account {
	found := b.nameOf(d, key)
	acc := b.byName[name(found)]
	if acc == nil {
		acc = &Account{Key: key, book: b, name: name(found), worker: b.worker}
		b.byName[acc.name] = acc
	}
	acc.Definition, acc.usedNs = d, now
	return acc
}

// current returns the account that the key has by now: one that Open has made since Sweep has forgotten acc, or else
// acc. That of nil is nil.
func (acc *Account) current() *Account {
	if acc != nil && acc.isForgotten {
		if next := acc.book.byName[acc.name]; next != nil {
			return next
		}
	}
	return acc
}

// revive returns the current account, to be changed. If it is forgotten, it is put back into the book.
func (acc *Account) revive() *Account {
	acc = acc.current()
	if acc != nil && acc.isForgotten {
		acc.isForgotten = false
		acc.book.byName[acc.name] = acc
	}
	return acc
}

// newReportNumber numbers a report: the store takes no number that is not larger than the last one.
func (b *Book) newReportNumber() uint64 {
	b.newest++
	return b.newest
}

// HasListed reports whether some account may have to be reported.
func (b *Book) HasListed() bool { return len(b.listed) > 0 }

// Due takes accounts off the list until due has most of them, or the list is empty. It appends those that must be
// reported. It drops an account whose key is silent: Sweep lists it again.
func (b *Book) Due(due []*Account, most int, now int64) []*Account {
	left := b.listed[:0]
	for _, acc := range b.listed {
		switch {
		case acc.reporting.state != listed: // Claim has taken it off, or it was on the list twice
		case len(due) >= most:
			left = append(left, acc)
		default:
			acc.reporting = reporting{}
			if acc.SilentUntilNs <= now && acc.mustReport(now) {
				due = append(due, acc)
			}
		}
	}
	clear(b.listed[len(left):])
	b.listed = left
	return due
}

// ReportAll has all that is held reported anew: the stream has ended.
func (b *Book) ReportAll() {
	for _, acc := range b.byName {
		acc.reportAnew()
	}
}

// Sweep looks, once a second, which accounts must be reported, and forgets those that hold nothing and from
// which no request has waited for units of late.
func (b *Book) Sweep(now, timeoutNs int64) {
	if len(b.byName) == 0 || now < b.sweepNs {
		return
	}
	b.sweepNs = now + sweepEveryNs
	for name, acc := range b.byName {
		switch {
		case acc.mustReport(now):
			acc.list()
		case acc.sums.Idle() && now-acc.usedNs > forgetNs+timeoutNs:
			delete(b.byName, name)
			acc.isForgotten = true
		}
	}
}

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet, and
// has it reported. newDefinitionID numbers the definitions anew. A configuration ends after its last request, so no
// hold points to an idle account, which is not inherited.
//
// For example, the configuration of worker 7 is replaced while the store has 3 of key k as held by it:
//
//	worker 8 inherits  account "k7", reported by 7. Its definition has a number of worker 8
//	a request of k     account "k", reported by 8, beside it. The service counts both
//	worker 9 inherits  both: "k7" keeps its name, and "k" becomes "k8". Worker 9 reports each of them under the
//	                   number of the worker that opened it
func (b *Book) Inherit(old *Book, newDefinitionID func() uint32) {
	b.newest = max(b.newest, old.newest) // the store takes no lower numbers: ErrStale

	renumbered := map[*quota.Definition]*quota.Definition{} // the old definitions under new numbers
	for _, acc := range old.byName {
		if acc.sums.Idle() {
			continue
		}
		d := renumbered[acc.Definition]
		if d == nil {
			d = new(quota.Definition)
			*d = *acc.Definition
			d.ID = newDefinitionID()
			renumbered[acc.Definition] = d
		}
		if acc.worker == old.worker { // it was not inherited before
			acc.name += name(strconv.FormatUint(acc.worker, 16))
		}
		acc.book, acc.Definition = b, d
		acc.reporting = reporting{} // old has listed it
		acc.reportAnew()
		b.byName[acc.name] = acc
	}
	clear(old.byName)
}
