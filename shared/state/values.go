package state

import "slices"

// Small values in shared data, by which the workers of a proxy tell each other what no table
// has: how many proxies are alive, and what streams hold of a rule.

// SetProxies shares with all workers how many proxies are alive.
func (ts *Tables) SetProxies(n uint32) {
	key := ts.proxiesKey()
	ts.store.Set(key[:], le.AppendUint32(nil, n), 0) // whatever the cas: what a worker heard last is right
}

// Proxies returns how many proxies some worker has heard are alive, 0 if none has.
func (ts *Tables) Proxies() uint32 {
	key := ts.proxiesKey()
	value, _, status := ts.store.Get(key[:])
	if status != OK || len(value) != 4 {
		return 0
	}
	return le.Uint32(value)
}

// HeldTotal is what streams hold of one rule.
type HeldTotal struct{ Units, Streams int64 }

// What the streams hold of a rule is one value with a row for each VM. A VM that has trapped
// gives no sign of life, and its row goes. A row:
//
//	 0  u64  the VM's configuration
//	 8  i64  when it wrote last, by the monotonic clock
//	16  i64  units
//	24  i64  streams
const (
	heldRowBytes = 32
	// silentAfterNs is after how long without a sign of life a VM's row goes.
	silentAfterNs = 5_000_000_000
	// aliveNs is how old a row may become that does not change.
	aliveNs = 2_000_000_000
)

type heldRow struct {
	vm      uint64
	wroteNs int64 // when the VM wrote last
	HeldTotal
}

func readHeldRow(b []byte) heldRow {
	return heldRow{
		vm:        le.Uint64(b),
		wroteNs:   int64(le.Uint64(b[8:])),
		HeldTotal: HeldTotal{Units: int64(le.Uint64(b[16:])), Streams: int64(le.Uint64(b[24:]))},
	}
}

func (r *heldRow) append(b []byte) []byte {
	b = le.AppendUint64(b, r.vm)
	b = le.AppendUint64(b, uint64(r.wroteNs))
	b = le.AppendUint64(b, uint64(r.Units))
	return le.AppendUint64(b, uint64(r.Streams))
}

// ShareHeldTotal tells the other VMs what the streams of this one hold of a rule, and returns
// what the streams of all VMs hold. rule is a hash of the rule's name, vm the VM's configuration.
// A VM that holds nothing has no row.
func (ts *Tables) ShareHeldTotal(rule uint32, vm uint64, own HeldTotal) (all HeldTotal, status Status) {
	key := ts.heldTotalKey(rule)
	now := ts.store.Monotonic()
	status = Update(ts.store, key[:], func(old []byte) (next []byte, _ Status) {
		all = own
		next = make([]byte, 0, len(old)+heldRowBytes)
		ownIsDue := own != HeldTotal{} // a first row
		whole := old[:len(old)/heldRowBytes*heldRowBytes]
		for b := range slices.Chunk(whole, heldRowBytes) {
			row := readHeldRow(b)
			switch {
			case row.vm == vm:
				ownIsDue = row.HeldTotal != own || now-row.wroteNs >= aliveNs
			case now-row.wroteNs < silentAfterNs:
				all.Units += row.Units
				all.Streams += row.Streams
				next = append(next, b...)
			}
		}
		if own != (HeldTotal{}) {
			row := heldRow{vm, now, own}
			next = row.append(next)
		}
		othersWent := len(next) != len(old) // if own is not due, this VM has as many rows as before
		if !ownIsDue && !othersWent {
			return nil, OK
		}
		return next, OK
	})
	return all, status
}
