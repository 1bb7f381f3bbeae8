package state

import (
	"math/bits"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// maxFastWindows is how many windows a rule of the fast path has at most.
const maxFastWindows = 3

// Fast is the fast path through a table: straight code over the bytes of a page,
// with all offsets worked out when the table was found. It serves rules of one to
// three windows that are aligned or begin with a key's first hit.
//
// Its law: it leaves the entry, and shared data, as Read, Check and Commit would,
// or it declines and has changed nothing. It declines whatever is rare: a page
// that does not exist yet or has another layout, a full page, a floor, a wild
// clock, a window that slides.
type Fast struct {
	fastPages
	windows []limit.Window
	max     uint32               // the smallest limit: a larger cost never passes
	spans   [maxFastWindows]span // of aligned windows, where the last hit fell
	at      [maxFastWindows]int  // offset of each window's usage in a record
}

// NewFast returns the fast path for keys of the table that have these windows; nil
// for those it does not serve.
func NewFast(t *Table, windows []limit.Window) *Fast {
	if len(windows) == 0 || len(windows) > maxFastWindows {
		return nil
	}
	f := &Fast{fastPages: fastPages{table: t}, windows: windows, max: windows[0].Limit}
	for i := range windows {
		w := &windows[i]
		if w.Algorithm != limit.FixedWindow && w.Algorithm != limit.FixedWindowPerKey ||
			w.Jitter > 0 || w.Elastic || w.Unlimited {
			return nil
		}
		f.max = min(f.max, w.Limit)
	}
	return f
}

func (f *Fast) prepare() {
	f.fastPages.prepare()
	f.spans = [maxFastWindows]span{}
	for i := range f.windows {
		f.at[i] = recordHeadBytes + f.table.layout.usages[i]
	}
}

// Read is Table.Read of a key that has the path's windows, and Table.Check of a hit
// of cost units; ok is false where it declines.
func (f *Fast) Read(e *Entry, key []byte, now int64, cost uint32) (passNs int64, ok bool) {
	t := f.table
	if f.adopted != t.adopted {
		f.prepare()
	}
	if !t.open || !f.usable || cost == 0 || cost > f.max {
		return 0, false
	}
	e.hash = siphash.Hash(t.tables.seed[0], t.tables.seed[1], key)
	if f.get(e) {
		if passNs, ok = f.read(e, now, cost); ok {
			return passNs, true
		}
		f.decline(e)
	}
	return 0, false
}

// read finds the key's record in e.page and decides.
func (f *Fast) read(e *Entry, now int64, cost uint32) (passNs int64, ok bool) {
	t, b, fingerprint := f.table, e.page, uint32(e.hash)
	last := int64(le.Uint64(b[offFloorTime:]))
	slot, record := f.find(b, fingerprint)
	if slot >= 0 {
		last = int64(le.Uint64(record) - 1)
	} else {
		for i := f.floor; i < f.prints; i += 4 {
			if le.Uint32(b[i:]) != 0 {
				return 0, false
			}
		}
	}
	if last > now+aheadNs {
		return 0, false
	}
	at := max(now, last)
	passNs, resets := at, 0
	for i := range f.windows {
		w, u := &f.windows[i], &e.usage[i]
		*u = limit.Usage{}
		if slot >= 0 {
			u.Used = le.Uint32(record[f.at[i]:])
		}
		var end int64
		if w.Algorithm == limit.FixedWindow {
			s := &f.spans[i]
			if at < s.start || at >= s.end {
				in := (at - w.OffsetNs) % w.PeriodNs
				if in < 0 {
					in += w.PeriodNs
				}
				s.start, s.end = at-in, at-in+w.PeriodNs
			}
			end = s.end
			if last < s.start && u.Used != 0 {
				u.Used = 0
				resets++
			}
		} else if slot >= 0 {
			end = int64(le.Uint64(record[f.at[i]+4:]))
			if end < 0 { // it slides
				return 0, false
			}
			u.EndNs = end
			if end <= at && (end != 0 || u.Used != 0) {
				u.Used, u.EndNs = 0, 0
				resets++
			}
		}
		if u.Used > w.Limit-cost {
			passNs = max(passNs, end)
		}
	}
	e.Now, e.CallerNs, e.slot, e.fingerprint = at, now, slot, fingerprint
	e.FromFloor, e.Evicted, e.Rebased, e.Resets = false, false, false, resets
	e.fresh, e.epoch, e.opened = false, t.epoch, 0
	e.windows, e.rule = f.windows, f.windows
	return passNs, true
}

// Commit is Table.Commit of a hit that Read has passed; ok is false where it
// declines.
func (f *Fast) Commit(e *Entry, cost uint32) (s Status, ok bool) {
	t, b := f.table, e.page
	if e.epoch != t.epoch || f.adopted != t.adopted || e.fresh {
		return Mismatch, false
	}
	var record []byte
	if e.slot >= 0 {
		at := f.records + e.slot*f.recordSize
		record = b[at : at+f.recordSize]
		e.generation = le.Uint16(record[8:]) & generationMask
	} else {
		records, i := f.records, 0
		for ; ; i++ {
			if records == f.size { // somebody must go
				return Mismatch, false
			}
			record = b[records : records+f.recordSize]
			if le.Uint64(record) == 0 {
				break
			}
			records += f.recordSize
		}
		e.slot = i
		le.PutUint32(b[f.prints+i*fingerprintBytes:], e.fingerprint)
		e.generation = le.Uint16(b[offGeneration:]) & generationMask
	}
	le.PutUint64(record, uint64(e.Now)+1)
	le.PutUint16(record[8:], e.generation)
	for i := range f.windows {
		w, u := &f.windows[i], &e.usage[i]
		sum, carry := bits.Add32(u.Used, cost, 0)
		u.Used = sum | -carry
		le.PutUint32(record[f.at[i]:], u.Used)
		if w.Algorithm == limit.FixedWindowPerKey {
			if u.EndNs == 0 {
				u.EndNs = e.Now + w.PeriodNs
				e.opened |= 1 << i
			}
			le.PutUint64(record[f.at[i]+4:], uint64(u.EndNs))
		}
	}
	return t.tables.store.Set(e.key[:], b, e.cas), true
}
