package engine

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	// leaseNs is how long a lease lasts, and so how late a worker notices that a
	// key was set or reset by another.
	leaseNs = 100_000_000
	// leaseRestNs is how long a key remembers how much it needed.
	leaseRestNs = 1_000_000_000
)

// lease is units of one key that this worker has counted and not yet served.
// Every unit is one that the limits had room for when it was counted.
type lease struct {
	charge state.Charge
	serial uint32 // of the charge among those of this slot; 0 = none yet
	size   uint32 // units that were counted, the hit's own among them
	left   uint32 // of those, not served
	tick   uint32 // in which it was taken
}

// loan is what an attempt has to do with its key's lease.
type loan struct {
	lease  *lease
	serial uint32       // of the lease as check found it
	left   uint32       //
	aimed  bool         // the entry has the key's hash
	served bool         // the lease has what the hit needs: the record is not read
	lent   bool         // the hit came out of a lease, or with one
	charge state.Charge // in which it was counted, then
	jitter uint64       // the key's stable hash
}

// end gives back what is left of a lease.
func (b *leases) end(l *lease, now int64) {
	units := l.drop()
	if units > 0 {
		b.gave(units, b.table.GiveBack(&b.worker.entry, &l.charge, now, units))
	}
}

// drop takes what is left out of the lease. Its size then is what was needed.
func (l *lease) drop() (units uint32) {
	units = l.left
	l.size, l.left = l.size-units, 0
	return units
}

func (b *leases) gave(units uint32, back bool) {
	if back {
		b.metrics.LeaseReturned += uint64(units)
	} else {
		b.metrics.LeaseLost += uint64(units)
	}
}

// live reports whether the lease may be served at now: not longer than leaseNs
// after it was taken, by the clock that took it, nor beyond the second tick,
// whatever that clock does, nor in other windows, nor under another layout of
// the table.
func (b *leases) live(l *lease, now int64) bool {
	c := &l.charge
	return l.serial != 0 && b.worker.ticks-l.tick < 2 && now >= c.CalledNs && now-c.CalledNs < leaseNs && max(now, c.Now) < c.EndNs && b.table.Holds(c)
}

func (b *leases) slot(hash uint64) *lease { return &b.slots[b.at(hash)] }

// at is the index of the slot. Both numbers of slots are powers of two.
func (b *leases) at(hash uint64) int { return int(hash & uint64(len(b.slots)-1)) }

// of returns the lease of the key with that hash, or nil.
func (b *leases) of(hash uint64) *lease {
	if l := b.slot(hash); l.serial != 0 && l.charge.Hash == hash {
		return l
	}
	return nil
}

// countedAt is what the windows of the slot's key have used.
func (b *leases) countedAt(hash uint64) []state.Counted {
	windows := b.windows()
	at := b.at(hash) * windows
	return b.counted[at : at+windows]
}

// next is how many units the key's next lease may hold: twice as many if these
// were served in time, else those that were.
func (b *leases) next(l *lease, now int64) uint32 {
	switch since := now - l.charge.CalledNs; {
	case b.live(l, now):
		return min(2*min(l.size, b.most), b.most)
	case since >= 0 && since < leaseRestNs:
		return l.size - l.left
	}
	return 1
}

// borrow decides by the key's lease, where it has units for the hit and for
// those of the rules before this one, without a look at the record. The limits
// of this rule, which may be lower than those the units were counted under, must
// have had room for all of them.
func (t *attempt) borrow(now int64) bool {
	b := t.rule.leases
	if b == nil {
		return false
	}
	t.loan = loan{jitter: t.loan.jitter}
	if b.worker.stopped {
		return false
	}
	hash, ok := b.table.Aim(&t.entry, t.limits.Bytes)
	if !ok {
		return false
	}
	t.loan.aimed = true
	l := b.of(hash)
	if l == nil {
		return false
	}
	t.loan.lease, t.loan.serial, t.loan.left = l, l.serial, l.left
	if l.left == 0 || l.left < t.cost || l.left-t.cost < t.ahead || !b.live(l, now) {
		return false
	}
	at, counted := max(now, l.charge.Now), b.countedAt(hash)
	for i, c := range counted {
		u := limit.Usage{Used: c.Used, Prev: c.Prev}
		if t.limits.Windows[i].Check(&u, at, 0) != at {
			return false
		}
	}
	b.table.Tell(&t.entry, at, counted, l.left)
	t.loan.served = true
	t.allowed, t.reason, t.known = true, "", true
	return true
}

// forgo leaves the key's own unserved units out of what the record says: they
// are nobody's, and the next write gives them back.
func (t *attempt) forgo() {
	b := t.rule.leases
	if b == nil {
		return
	}
	l := b.of(b.table.Hash(&t.entry))
	t.loan.lease = l
	if l == nil {
		return
	}
	if l.left > 0 && !b.table.Forgo(&t.entry, &l.charge, l.left) {
		b.gave(l.drop(), false)
	}
	t.loan.serial, t.loan.left = l.serial, l.left
}

// overtaken reports whether another rule of this request has changed the lease
// since it was looked at.
func (t *attempt) overtaken() bool {
	l := t.loan.lease
	return l != nil && (l.serial != t.loan.serial || l.left != t.loan.left)
}

// serve takes the hit out of the lease.
func (t *attempt) serve() bool {
	if !t.loan.served {
		return false
	}
	l := t.loan.lease
	l.left -= t.cost
	t.loan.left, t.loan.lent, t.loan.charge = l.left, true, l.charge
	t.counted = true
	t.tell(l)
	return true
}

func (t *attempt) tell(l *lease) {
	b := t.rule.leases
	b.table.Tell(&t.entry, t.entry.Now, b.countedAt(l.charge.Hash), l.left)
}

// extra is how many units beyond the hit's own the commit may count: what the
// key has shown to need, and at most a share of what it has left beside its
// first hit, so that the last units are nobody's alone; and none that are too few
// for a request.
func (t *attempt) extra(now int64) uint32 {
	b, l := t.rule.leases, t.loan.lease
	if b == nil || l == nil || b.worker.stopped || t.cost >= b.most || t.entry.Rebased {
		return 0
	}
	size := b.next(l, now)
	if size <= t.cost || !b.table.Lendable(&t.entry) {
		return 0
	}
	left := uint32(math.MaxUint32)
	for i, w := range t.limits.Windows {
		if !w.Unlimited {
			left = min(left, w.Remaining(b.table.Usage(&t.entry, i), t.entry.Now), max(w.Limit, 1)-1)
		}
	}
	size = min(size, left/policy.LeaseShare)
	beyond := max(size, t.cost) - t.cost
	return beyond - beyond%b.least
}

// hold keeps the units that the commit has counted beyond the hit's own, and
// that the key was here.
func (t *attempt) hold(extra uint32, now int64) {
	b := t.rule.leases
	if b == nil {
		return
	}
	l := t.loan.lease
	if l != nil {
		b.gave(l.drop(), true) // with the commit
	}
	if b.worker.stopped {
		return
	}
	charge := b.table.Charged(&t.entry, t.loan.jitter)
	switch {
	case extra > 0 && !b.opened():
		b.open()
		l = b.slot(charge.Hash)
	case l == nil:
		if l = b.slot(charge.Hash); b.live(l, now) {
			return
		}
		b.end(l, now)
	}
	*l = lease{charge: charge, serial: max(l.serial+1, 1), size: t.cost + extra, left: extra, tick: b.worker.ticks}
	b.table.Tally(&t.entry, b.countedAt(charge.Hash))
	t.loan = loan{lease: l, serial: l.serial, left: extra, jitter: t.loan.jitter, lent: extra > 0, charge: charge}
	if extra > 0 {
		t.tell(l)
	}
}

// refund puts the hit back into the lease that it came out of, or was counted
// with. It reports whether nothing is left to take back.
func (t *attempt) refund(now int64) bool {
	if !t.loan.lent {
		return false
	}
	b, l := t.rule.leases, t.loan.lease
	if l.serial == t.loan.serial {
		l.left += t.cost
		t.tell(l)
	} else if !b.table.GiveBack(&b.worker.entry, &t.loan.charge, now, t.cost) {
		t.rule.metrics.NotTakenBack++
	}
	return true
}

// settleLease gives back what a denied key's lease has left, if that is over.
func (t *attempt) settleLease(now int64) {
	if l := t.loan.lease; l != nil && l.left > 0 && !t.rule.leases.live(l, now) {
		t.rule.leases.end(l, now)
	}
}

// surrender ends the key's lease, for an operation that changes the record, and
// reports whether that may have changed what was read of it.
func (t *attempt) surrender(now int64) bool {
	b := t.rule.leases
	if b == nil {
		return false
	}
	l := b.of(b.table.Hash(&t.entry))
	if l == nil || l.left == 0 {
		return false
	}
	b.end(l, now)
	return true
}
