package lease

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// accounts are the accounts of a worker. Read the head of shared/quota/account.go first: it says what an Account
// is, and how the store counts by its reports.
type accounts struct {
	byName  map[accountName]*account
	listed  []*account // that queueReports looks at: it reports those that mustReport
	worker  uint64     // by which the service knows this worker
	number  uint64     // of the newest report
	renewNs int64      // when to look which accounts are to be renewed
	name    []byte     // memory for an accountName
}

// accountName is what an account is found by: counter and key, and for an inherited account also the
// worker that opened it, because the key may have an account of this worker too.
type accountName string

// account is what this worker holds of one key, and what the service knows of that by its
// reports. The service hears of each change, and each eighth of the hold.
type account struct {
	quota.Account
	name       accountName
	worker     uint64 // that reports it: an earlier configuration's, if that has ended
	key        [16]byte
	definition *quota.Definition
	asked      *ask         // in which its newest report is under way, nil if that is answered or given up
	isListed   bool         // among accounts.listed
	reportedNs int64        // when it was reported last
	usedNs     int64        // when a request last wanted units
	silentNs   int64        // until when the service cannot reach the key
	startNs    int64        // until when the store is starting: it takes reports, and grants nothing
	block      *blockDenial // of a blocked key, nil for all others: a worker has many accounts
}

const (
	// forgetNs is how long nobody must want units of an idle account before it is forgotten:
	// longer than a request waits.
	forgetNs = 10_000_000_000
	// maxAccounts is how many keys a worker reports: if the service does not answer, each of
	// them stays. on_unavailable decides about one more.
	maxAccounts = 1 << 16
	// renewEveryNs is how often renew goes through the accounts: within an eighth of the shortest
	// hold, which is 1.25 s.
	renewEveryNs = 1_000_000_000
)

// holdNs is how long the service holds the units of a worker that reports nothing.
func (acc *account) holdNs() int64 {
	return acc.definition.Windows[len(acc.definition.Windows)-1].PeriodNs
}

// mustReport reports whether the service is to hear of the account: it has changed, or an
// eighth of the hold has passed.
func (acc *account) mustReport(now int64) bool {
	return acc.Changed() || !acc.Idle() && now-acc.reportedNs >= acc.holdNs()/limit.HoldParts
}

func (accs *accounts) areMany() bool { return len(accs.byName) >= maxAccounts }

// nameOf is the accountName of a key, in memory that the next call uses.
func (accs *accounts) nameOf(d *quota.Definition, key [16]byte) []byte {
	accs.name = append(append(accs.name[:0], d.Counter[:]...), key[:]...)
	return accs.name
}

// find returns the account of a key, nil if there is none.
func (accs *accounts) find(d *quota.Definition, key [16]byte) *account {
	return accs.byName[accountName(accs.nameOf(d, key))]
}

// open returns the account of a key from which a request wants units, a new one if there is none.
func (accs *accounts) open(d *quota.Definition, key [16]byte, now int64) *account {
	name := accs.nameOf(d, key)
	acc := accs.byName[accountName(name)]
	if acc == nil {
		acc = &account{name: accountName(name), worker: accs.worker, key: key}
		accs.byName[acc.name] = acc
	}
	acc.definition, acc.usedNs = d, now
	return acc
}

// recall returns the account that acc's key has by now. If acc was forgotten and no other was
// opened since, it is acc again.
func (accs *accounts) recall(acc *account) *account {
	if other := accs.byName[acc.name]; other != nil {
		return other
	}
	accs.byName[acc.name] = acc
	return acc
}

// list has the account reported with the next message, if it mustReport.
func (accs *accounts) list(acc *account) {
	if !acc.isListed {
		acc.isListed = true
		accs.listed = append(accs.listed, acc)
	}
}

// listAll has all that is held reported anew: the service, or its store, may have lost it.
func (accs *accounts) listAll(now int64) {
	for _, acc := range accs.byName {
		if !acc.Idle() {
			acc.reportedNs = now - acc.holdNs()
			accs.list(acc)
		}
	}
}

// renew looks, once a second, which accounts must be reported, and forgets those that hold
// nothing.
func (accs *accounts) renew(now, timeoutNs int64) {
	if len(accs.byName) == 0 || now < accs.renewNs {
		return
	}
	accs.renewNs = now + renewEveryNs
	for name, acc := range accs.byName {
		switch {
		case acc.mustReport(now):
			accs.list(acc)
		case acc.Idle() && now-acc.usedNs > forgetNs+timeoutNs:
			delete(accs.byName, name)
		}
	}
}

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet, and
// has it reported. For example, worker 7 holds 3 of key k, and its configuration is replaced:
//
//	worker 8 inherits  account "k7", reported by 7: held 3. Its definition has a number of worker 8
//	a request of k     account "k", reported by 8, beside it. The service counts both
//	worker 9 inherits  both: "k7" keeps its name, and "k" becomes "k8". Worker 9 reports each of them under the
//	                   number of the worker that opened it
func (c *Client) Inherit(from *Client) {
	accs, old := &c.worker.accounts, &from.worker.accounts
	accs.number = max(accs.number, old.number) // the store takes no lower numbers: ErrStale

	renumbered := map[*quota.Definition]*quota.Definition{} // the old definitions under new numbers
	for _, acc := range old.byName {
		if acc.Idle() {
			continue
		}
		d := renumbered[acc.definition]
		if d == nil {
			d = new(quota.Definition)
			*d = *acc.definition
			d.ID = c.worker.newNumber()
			renumbered[acc.definition] = d
		}
		if acc.worker == old.worker { // it was not inherited before
			acc.name += accountName(strconv.FormatUint(acc.worker, 16))
		}
		acc.definition = d
		acc.asked = nil
		acc.isListed = false
		accs.byName[acc.name] = acc
	}
	accs.listAll(c.worker.clock.Monotonic())
	clear(old.byName)
}
