package state

import "slices"

// StreamTotal is what streams hold of one rule, for a gauge: nothing is decided by it.
type StreamTotal struct{ Units, Streams int64 }

// What the streams hold of a rule is one value with a row for each VM. A VM that has trapped
// gives no sign of life, and its row goes. A row:
//
//	 0  u64  the VM's configuration
//	 8  i64  when it wrote last, by the monotonic clock
//	16  i64  units
//	24  i64  streams
const (
	streamRowBytes = 32
	// silentAfterNs is after how long without a sign of life a VM's row goes.
	silentAfterNs = 5_000_000_000
	// aliveNs is how old a row may become that does not change.
	aliveNs = 2_000_000_000
)

type streamRow struct {
	vm      uint64
	wroteNs int64 // when the VM wrote last
	StreamTotal
}

func readStreamRow(b []byte) streamRow {
	return streamRow{
		vm:          le.Uint64(b),
		wroteNs:     int64(le.Uint64(b[8:])),
		StreamTotal: StreamTotal{Units: int64(le.Uint64(b[16:])), Streams: int64(le.Uint64(b[24:]))},
	}
}

func (r *streamRow) append(b []byte) []byte {
	b = le.AppendUint64(b, r.vm)
	b = le.AppendUint64(b, uint64(r.wroteNs))
	b = le.AppendUint64(b, uint64(r.Units))
	return le.AppendUint64(b, uint64(r.Streams))
}

// ShareStreamTotal tells the other VMs what the streams of this one hold of a rule, and returns
// what the streams of all VMs hold. rule is a hash of the rule's name, vm the VM's configuration.
// A VM that holds nothing has no row.
func (ts *Tables) ShareStreamTotal(rule uint32, vm uint64, own StreamTotal) (all StreamTotal, status Status) {
	key := ts.streamTotalKey(rule)
	now := ts.store.Monotonic()
	status = Update(ts.store, key[:], func(old []byte) (next []byte, _ Status) {
		all = own
		next = make([]byte, 0, len(old)+streamRowBytes)
		ownIsDue := own != StreamTotal{} // a first row
		whole := old[:len(old)/streamRowBytes*streamRowBytes]
		for b := range slices.Chunk(whole, streamRowBytes) {
			row := readStreamRow(b)
			switch {
			case row.vm == vm:
				ownIsDue = row.StreamTotal != own || now-row.wroteNs >= aliveNs
			case now-row.wroteNs < silentAfterNs:
				all.Units += row.Units
				all.Streams += row.Streams
				next = append(next, b...)
			}
		}
		if own != (StreamTotal{}) {
			row := streamRow{vm, now, own}
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
