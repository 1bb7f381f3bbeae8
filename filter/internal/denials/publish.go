package denials

import (
	"encoding/binary"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// Workers publish in places: values of shared data that one worker writes at a time. All
// integers are little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 7 = denials
//	2  u16  rules n
//	4  u64  worker
//	12 i64  when it was written
//	20      n × rule: u64 rule, i64 since when, u32 rest, u16 keys k, and
//	        k × u64 key, u32 denied, u32 error, u8 text, text bytes; no text where it is a hash
const (
	formatVersion = 1
	kindDenials   = 7

	headBytes     = 20
	ruleHeadBytes = 22
	keyHeadBytes  = 17

	// MaxPlaces is how many workers publish.
	MaxPlaces = 256
	// freeNs is how long after its last publication a worker's place is free. A worker
	// that knows of denials publishes at least once in a period.
	freeNs = 3 * PeriodNs
)

var le = binary.LittleEndian

func keyOf(place uint64) []byte {
	return strconv.AppendUint([]byte("sluice/denied/"), place, 10)
}

// publisherOf returns the worker that has published a value and may live, 0 if there is
// none.
func publisherOf(b []byte, now int64) (worker uint64) {
	if len(b) < headBytes || b[0] != formatVersion || b[1] != kindDenials {
		return 0
	}
	if atNs := int64(le.Uint64(b[12:])); atNs <= now-freeNs || atNs > now+PeriodNs {
		return 0
	}
	return le.Uint64(b[4:])
}

// Publish tells the other workers what has changed since the last call. Call it on a
// tick.
func (w *Worker) Publish(now int64) {
	for _, r := range w.kept {
		w.rotate(r, now)
	}
	if w.changed {
		w.append(now)
		w.changed = !w.write(now)
	}
}

// write writes the message to the worker's place, or to the next that no other worker has:
// the first time a worker looks at the places of all that came before it.
func (w *Worker) write(now int64) bool {
	for range MaxPlaces {
		free := false
		status := state.Update(w.store, keyOf(w.place), func(old []byte) ([]byte, state.Status) {
			if other := publisherOf(old, now); other != 0 && other != w.id {
				return nil, state.OK
			}
			free = true
			return w.message, state.OK
		})
		if free || status != state.OK {
			return status == state.OK
		}
		w.place = (w.place + 1) % MaxPlaces
	}
	return false
}

// append makes the message, with as many keys of each rule as there is room for.
func (w *Worker) append(now int64) {
	lists := make([]top.List, len(w.kept))
	for i, r := range w.kept {
		lists[i] = r.list()
	}
	for n := top.MaxKeys; size(lists) > top.MaxShared; n-- {
		for i := range lists {
			lists[i] = lists[i].Cut(n)
		}
	}
	b := le.AppendUint16(append(w.message[:0], formatVersion, kindDenials), uint16(len(lists)))
	b = le.AppendUint64(b, w.id)
	b = le.AppendUint64(b, uint64(now))
	for i := range lists {
		b = le.AppendUint64(b, w.kept[i].id)
		b = le.AppendUint64(b, uint64(w.kept[i].began[0]))
		b = le.AppendUint32(b, lists[i].Rest)
		b = le.AppendUint16(b, uint16(len(lists[i].Keys)))
		for j := range lists[i].Keys {
			k := &lists[i].Keys[j]
			b = le.AppendUint64(b, k.ID)
			b = le.AppendUint32(b, k.Denied)
			b = le.AppendUint32(b, k.Error)
			b = append(append(b, byte(len(k.Text()))), k.Text()...)
		}
	}
	w.message = b
}

func size(lists []top.List) int {
	n := headBytes
	for i := range lists {
		n += ruleHeadBytes
		for j := range lists[i].Keys {
			n += keyHeadBytes + len(lists[i].Keys[j].Text())
		}
	}
	return n
}

// Release forgets what the worker knows, and gives its place to another one.
func (w *Worker) Release(now int64) {
	if len(w.kept) > 0 {
		state.Update(w.store, keyOf(w.place), func(old []byte) ([]byte, state.Status) {
			if publisherOf(old, now) != w.id {
				return nil, state.OK
			}
			return []byte{}, state.OK
		})
	}
	for _, r := range w.kept {
		r.kept = nil
	}
	w.kept = nil
}

// Known is what all workers know of a rule.
type Known struct {
	SinceNs int64 // when the denials began to be counted, 0 without one
	top.List
}

// Known returns what all workers know of the rules, the others as they have last
// published it. ok is false if shared data could not be read.
func (w *Worker) Known(rules []*Rule, now int64) (known []Known, ok bool) {
	lists, since := map[uint64][]top.List{}, map[uint64]int64{}
	note := func(id uint64, began int64, l top.List) {
		lists[id] = append(lists[id], l)
		if at, have := since[id]; !have || began < at {
			since[id] = began
		}
	}
	secret := w.Secret()
	if secret == nil {
		return nil, false
	}
	for _, r := range rules {
		if r.kept != nil {
			w.rotate(r, now)
			note(r.id, r.began[0], r.list())
			continue
		}
		r.secret = secret
		r.identify()
	}
	for place := range uint64(MaxPlaces) {
		value, _, status := w.store.Get(keyOf(place))
		if status == state.Failed {
			return nil, false
		}
		if by := publisherOf(value, now); by != 0 && by != w.id {
			readDenials(value, note)
		}
	}
	known = make([]Known, len(rules))
	for i, r := range rules {
		known[i] = Known{since[r.id], top.Merge(lists[r.id]...)}
		if !r.Plain {
			r.hash(known[i].Keys)
		}
	}
	return known, true
}

// readDenials calls note for each rule that a worker has published, as far as it can be
// read.
func readDenials(b []byte, note func(id uint64, began int64, l top.List)) {
	rules := int(le.Uint16(b[2:]))
	for b = b[headBytes:]; rules > 0 && len(b) >= ruleHeadBytes; rules-- {
		id, began := le.Uint64(b), int64(le.Uint64(b[8:]))
		l, keys := top.List{Rest: le.Uint32(b[16:])}, int(le.Uint16(b[20:]))
		for b = b[ruleHeadBytes:]; keys > 0; keys-- {
			if len(b) < keyHeadBytes || len(b) < keyHeadBytes+int(b[16]) {
				return
			}
			end := keyHeadBytes + int(b[16])
			k := top.Key{ID: le.Uint64(b), Denied: le.Uint32(b[8:]), Error: le.Uint32(b[12:])}
			k.SetText(b[keyHeadBytes:end])
			l.Keys, b = append(l.Keys, k), b[end:]
		}
		note(id, began, l)
	}
}
