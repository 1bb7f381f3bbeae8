package denials

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// Workers publish in places: values of shared data that only one worker writes. The
// value of placesKey says whose they are. All integers are little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 6 = places
//	2  u16  places n
//	4       n × u64 worker, i64 when it published last; 0 = it has ended
//
// The value of a place:
//
//	0  u8   format version, 1
//	1  u8   kind, 7 = denials
//	2  u16  rules n
//	4  u64  worker
//	12 i64  when it was written
//	20      n × rule: u64 rule, i64 since when, u32 rest, u16 keys k, and
//	        k × u64 key, u32 denied, u32 error, u8 text, text bytes
const (
	formatVersion = 1
	kindPlaces    = 6
	kindDenials   = 7

	placesHeadBytes = 4
	placeBytes      = 16
	headBytes       = 20
	ruleHeadBytes   = 22
	keyHeadBytes    = 17

	// MaxPlaces is how many workers publish.
	MaxPlaces = 256
	// freeNs is how long after its last publication a worker's place is free. A worker
	// that knows of denials publishes at least once in a period.
	freeNs = 3 * PeriodNs
)

var (
	placesKey = []byte("sluice/denials")
	le        = binary.LittleEndian
)

type place struct {
	worker uint64
	atNs   int64
}

func readPlaces(b []byte) (list []place, ok bool) {
	if len(b) < placesHeadBytes || b[0] != formatVersion || b[1] != kindPlaces ||
		len(b) != placesHeadBytes+int(le.Uint16(b[2:]))*placeBytes {
		return nil, false
	}
	for b = b[placesHeadBytes:]; len(b) > 0; b = b[placeBytes:] {
		list = append(list, place{le.Uint64(b), int64(le.Uint64(b[8:]))})
	}
	return list, true
}

func appendPlaces(b []byte, list []place) []byte {
	b = le.AppendUint16(append(b, formatVersion, kindPlaces), uint16(len(list)))
	for _, p := range list {
		b = le.AppendUint64(b, p.worker)
		b = le.AppendUint64(b, uint64(p.atNs))
	}
	return b
}

func keyOf(place int) []byte {
	return strconv.AppendInt([]byte("sluice/denials/"), int64(place), 10)
}

// fresh reports whether what was written at an instant may be of a worker that lives.
func fresh(atNs, now int64) bool { return atNs > now-freeNs && atNs <= now+PeriodNs }

// update applies change to the places, and writes them back if it says so.
func (w *Worker) update(change func([]place) ([]place, bool)) bool {
	return state.OK == state.Update(w.store, placesKey, func(old []byte) ([]byte, state.Status) {
		var list []place
		ok := true
		if old != nil {
			list, ok = readPlaces(old)
		}
		if !ok {
			return nil, state.Failed
		}
		list, write := change(list)
		if !write {
			return nil, state.OK
		}
		return appendPlaces(nil, list), state.OK
	})
}

// take makes sure that the worker has a place, and that the others know that it lives.
func (w *Worker) take(now int64) bool {
	at := -1
	done := w.update(func(list []place) ([]place, bool) {
		at = slices.IndexFunc(list, func(p place) bool { return p.worker == w.id })
		if at >= 0 && list[at].atNs > now-PeriodNs/2 && list[at].atNs <= now {
			return nil, false
		}
		if at < 0 {
			at = slices.IndexFunc(list, func(p place) bool { return !fresh(p.atNs, now) })
		}
		if at < 0 {
			if len(list) == MaxPlaces {
				return nil, false
			}
			at, list = len(list), append(list, place{})
		}
		list[at] = place{w.id, now}
		return list, true
	})
	if !done {
		at = -1
	}
	w.place = at
	return at >= 0
}

// Publish tells the other workers what has changed since the last call. Call it on a
// tick.
func (w *Worker) Publish(now int64) {
	for _, r := range w.kept {
		w.turn(r, now)
	}
	if !w.changed || !w.take(now) {
		return
	}
	w.changed = !w.write(now)
}

// write writes the value of the worker's place, which no other writes.
func (w *Worker) write(now int64) bool {
	w.append(now)
	return w.store.Set(keyOf(w.place), w.message, 0) == state.OK
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
	for _, r := range w.kept {
		r.kept = nil
	}
	w.kept = nil
	if w.place < 0 {
		return
	}
	w.write(now)
	w.update(func(list []place) ([]place, bool) {
		at := slices.IndexFunc(list, func(p place) bool { return p.worker == w.id })
		if at >= 0 {
			list[at] = place{}
		}
		return list, at >= 0
	})
	w.place = -1
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
			w.turn(r, now)
			note(r.id, r.began[0], r.list())
			continue
		}
		r.secret = secret
		r.identify()
	}
	var places []place
	if !w.update(func(list []place) ([]place, bool) { places = list; return nil, false }) {
		return nil, false
	}
	for i, p := range places {
		if p.worker == w.id || !fresh(p.atNs, now) {
			continue
		}
		value, _, status := w.store.Get(keyOf(i))
		if status == state.Failed {
			return nil, false
		}
		readDenials(value, p.worker, now, note)
	}
	known = make([]Known, len(rules))
	for i, r := range rules {
		known[i] = Known{since[r.id], top.Merge(lists[r.id]...)}
	}
	return known, true
}

// readDenials calls note for each rule that the worker has published. What this build
// cannot read, and what is too old, it leaves out.
func readDenials(b []byte, worker uint64, now int64, note func(id uint64, began int64, l top.List)) {
	if len(b) < headBytes || b[0] != formatVersion || b[1] != kindDenials || le.Uint64(b[4:]) != worker ||
		!fresh(int64(le.Uint64(b[12:])), now) {
		return
	}
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
