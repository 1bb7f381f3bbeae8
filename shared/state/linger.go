package state

// Lingering is a hold whose request was reset, while its upstream may still be at work.
type Lingering struct {
	Receipt Receipt
	EndNs   int64 // when it is to be settled, by the monotonic clock
}

// A configuration that ends leaves what lingers to the others of its owner, in one value:
//
//	 0  u64  owner
//	 8  16   counter
//	24  u32  units
//	28  u32  number of the key's record
//	32  u32  epoch of the table
//	36  u32  eighth in which the stream was last known to run
//	40  i64  how long an eighth was then
//	48  u64  hash of the key
//	56  i64  when it is to be settled
//
// and once more for each hold. Nobody has to take one: it lapses then.
const lingeringBytes = 64

// unclaimedNs is how long one lies there that nobody takes.
const unclaimedNs = 60_000_000_000

// A layout of records has a value of its own: its receipts are of its own tables.
var lingeringKey = []byte("sluice/lingers" + keySuffix)

// LeaveLingering leaves what lingers to other configurations. Holds have the tables of
// their counters.
func (t *Tables) LeaveLingering(tables []*Table, holds []Lingering) Status {
	return Update(t.store, lingeringKey, func(old []byte) ([]byte, Status) {
		next := append(make([]byte, 0, len(old)+len(holds)*lingeringBytes), old...)
		for i := range holds {
			r := &holds[i].Receipt
			next = le.AppendUint64(next, t.self.id)
			next = append(next, tables[i].def.Counter[:]...)
			next = le.AppendUint32(next, r.Units)
			next = le.AppendUint32(next, r.number)
			next = le.AppendUint32(next, r.epoch)
			next = le.AppendUint32(next, r.eighth)
			next = le.AppendUint64(next, uint64(r.eachNs))
			next = le.AppendUint64(next, r.hash)
			next = le.AppendUint64(next, uint64(holds[i].EndNs))
		}
		return next, OK
	})
}

// TakeLingering takes what others have left of these tables' counters, and calls take with
// each.
func (t *Tables) TakeLingering(take func(*Table, Lingering)) Status {
	taken := []int{}
	var value []byte
	status := Update(t.store, lingeringKey, func(old []byte) (next []byte, status Status) {
		taken, value = taken[:0], append(value[:0], old...)
		now := t.store.Monotonic()
		next = []byte{}
		for at := 0; at+lingeringBytes <= len(value); at += lingeringBytes {
			switch l, end := value[at:at+lingeringBytes], int64(le.Uint64(value[at+56:])); {
			case t.lingering(l) != nil:
				taken = append(taken, at)
			case now-end < unclaimedNs:
				next = append(next, l...)
			}
		}
		if len(next) == len(value) {
			return nil, OK
		}
		return next, OK
	})
	if status != OK {
		return status
	}
	for _, at := range taken {
		l := value[at : at+lingeringBytes]
		take(t.lingering(l), Lingering{
			Receipt: Receipt{
				Units: le.Uint32(l[24:]), number: le.Uint32(l[28:]), epoch: le.Uint32(l[32:]), eighth: le.Uint32(l[36:]),
				eachNs: int64(le.Uint64(l[40:])), hash: le.Uint64(l[48:]),
			},
			EndNs: int64(le.Uint64(l[56:])),
		})
	}
	return OK
}

// lingering returns the table of what lingers, nil if it is none of t.
func (t *Tables) lingering(l []byte) *Table {
	if le.Uint64(l) != t.self.id {
		return nil
	}
	at, found := t.find(CounterID(l[8:24]))
	if !found {
		return nil
	}
	return t.tables[at]
}
