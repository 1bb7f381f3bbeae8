package account

import "github.com/sluice-ratelimit/sluice/shared/quota"

// Book has the accounts of a worker.
type Book struct {
	worker uint64 // by which the service knows this worker: see SetWorker

	byKey   map[accountKey]*Account
	listed  []*Account // for Due
	newest  uint64     // the number of the newest report
	sweepNs int64      // when Sweep goes through the accounts next
}

// NewBook returns a book without accounts.
func NewBook() *Book { return &Book{byKey: map[accountKey]*Account{}} }

// SetWorker says by which number the service knows this worker, before the first account is opened. Each worker and
// configuration has another.
func (b *Book) SetWorker(worker uint64) { b.worker = worker }

// accountKey is what an account is found by. A key that was inherited may have an account of this worker, too.
type accountKey struct {
	counter [16]byte
	Key     [16]byte
	worker  uint64 // that has opened the account. The service knows its reports by this number
}

const (
	// forgetNs is how long an account is kept that is not in use, after the timeout of the last request that has
	// wanted units of it.
	forgetNs = 10_000_000_000
	// maxAccounts is how many keys a worker reports: if the service does not answer, each of
	// them stays. on_unavailable decides about one more.
	maxAccounts = 1 << 16
	// sweepEveryNs is how often Sweep goes through the accounts: within an eighth of the shortest
	// hold, which is 1.25 s.
	sweepEveryNs = 1_000_000_000
)

// IsFull reports whether the book takes no account more.
func (b *Book) IsFull() bool { return len(b.byKey) >= maxAccounts }

// IsEmpty reports whether the book has no account.
func (b *Book) IsEmpty() bool { return len(b.byKey) == 0 }

// Find returns the account of a key, nil if there is none.
func (b *Book) Find(d *quota.Definition, key [16]byte) *Account {
	return b.byKey[accountKey{d.Counter, key, b.worker}]
}

// Open returns the account of a key from which a request wants units, a new one if there is none.
func (b *Book) Open(d *quota.Definition, key [16]byte, now int64) *Account {
	acc := b.Find(d, key)
	if acc == nil {
		acc = &Account{accountKey: accountKey{d.Counter, key, b.worker}, book: b}
		b.byKey[acc.accountKey] = acc
	}
	acc.Definition, acc.usedNs = d, now
	return acc
}

// newReportNumber numbers a report: the store takes no number that is not larger than the last one.
func (b *Book) newReportNumber() uint64 {
	b.newest++
	return b.newest
}

// HasListed reports whether some account may have to be reported.
func (b *Book) HasListed() bool { return len(b.listed) > 0 }

// Due takes accounts off the list, and appends those that must be reported to due, until that has most of them. The
// others that must be reported stay listed.
func (b *Book) Due(due []*Account, most int, now int64) []*Account {
	left := b.listed[:0]
	for _, acc := range b.listed {
		if acc.mustReport(now) {
			if len(due) >= most {
				left = append(left, acc)
				continue
			}
			due = append(due, acc)
		}
		acc.isListed = false
	}
	clear(b.listed[len(left):])
	b.listed = left
	return due
}

// ReportAll has all that is held reported on another stream, also what has not changed: the service, or its store, may
// have lost what it has heard.
func (b *Book) ReportAll() {
	for _, acc := range b.byKey {
		if !acc.sums.Idle() {
			acc.repeatNs = 0 // now
			acc.Enlist()
		}
	}
}

// Sweep looks, once a second, which accounts must be reported, and forgets those that are not in use and from
// which no request has wanted units of late.
func (b *Book) Sweep(now, timeoutNs int64) {
	if len(b.byKey) == 0 || now < b.sweepNs {
		return
	}
	b.sweepNs = now + sweepEveryNs
	for key, acc := range b.byKey {
		switch {
		case acc.mustReport(now):
			acc.Enlist()
		case !acc.isInUse() && now-acc.usedNs > forgetNs+timeoutNs:
			delete(b.byKey, key)
		}
	}
}

// isInUse reports whether somebody may change the account, or report it:
//
//	a request that has got units, or holds some  the sums are not Idle
//	an ask that was sent                         nor are they, until a report has its answer
//	a request whose hold has lapsed              lapsed
//	an ask that is queued                        claims
//	Due                                          isListed
//
// An ask that is late may have an account that is forgotten. Its report has ended, so its result gives no units.
func (acc *Account) isInUse() bool {
	return !acc.sums.Idle() || acc.lapsed > 0 || acc.claims > 0 || acc.isListed
}

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet, and
// has it reported. newDefinitionID numbers the definitions anew. A configuration ends after its last request, so no
// hold points to an idle account, which is not inherited.
//
// For example, the configuration of worker 7 is replaced while the store has 3 of key k as held by it:
//
//	worker 8 inherits  the account of k that 7 has opened. Its definition has a number of worker 8
//	a request of k     worker 8 opens another one beside it. The service counts both
//	worker 9 inherits  both, and reports each of them under the number of the worker that has opened it
func (b *Book) Inherit(old *Book, newDefinitionID func() uint32) {
	b.newest = max(b.newest, old.newest) // the store takes no lower numbers: ErrStale

	renumbered := map[*quota.Definition]*quota.Definition{} // the old definitions under new numbers
	for key, acc := range old.byKey {
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
		acc.book, acc.Definition = b, d
		acc.reporting = reporting{} // of old, and of asks that have ended with it
		acc.Enlist()
		b.byKey[key] = acc
	}
	clear(old.byKey)
}
