package state

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var le = binary.LittleEndian

// page is the bytes of a page, read and changed in place.
type page []byte

// newPage returns an empty page.
func newPage(l *Layout, epoch uint32) page {
	b := page(make([]byte, l.size))
	b[offVersion], b[offKind] = formatVersion, kindCounters
	b[offSlots], b[offWindows] = byte(l.Slots), byte(len(l.Windows))
	le.PutUint32(b[offEpoch:], epoch)
	for i, w := range l.Windows {
		putWindow(b[headBytes+i*windowBytes:], w)
	}
	if l.holds {
		b.beginHolds(l)
	}
	return b
}

func putWindow(b []byte, w limit.Window) {
	b[0], b[1] = byte(w.Algorithm), 0
	if w.Elastic {
		b[1] = elasticBit
	}
	extra := uint16(w.Jitter)
	if w.Algorithm == limit.SlidingWindowLog || w.Algorithm == algorithmLease {
		extra = w.Units
	}
	le.PutUint16(b[2:], extra)
	le.PutUint64(b[4:], uint64(w.PeriodNs))
	le.PutUint64(b[12:], uint64(w.OffsetNs))
}

// readWindow returns the definition at b, and whether this build knows it.
func readWindow(b []byte) (limit.Window, bool) {
	w := limit.Window{
		Algorithm: limit.Algorithm(b[0]),
		PeriodNs:  int64(le.Uint64(b[4:])),
		OffsetNs:  int64(le.Uint64(b[12:])),
		Elastic:   b[1] == elasticBit,
	}
	extra, maxExtra := le.Uint16(b[2:]), uint16(0)
	switch w.Algorithm {
	case limit.FixedWindow:
		w.Jitter, maxExtra = uint8(extra), 100
	case limit.SlidingWindowLog:
		w.Units, maxExtra = extra, limit.MaxLog
	case algorithmLease:
		w.Units, maxExtra = extra, MaxWindows
	default: // no more fields
	}
	usage, _ := usageBytes(w)
	known := usage != 0 && extra <= maxExtra &&
		(b[1] == 0 || w.Elastic && w.Algorithm == limit.FixedWindowPerKey) &&
		w.InRange()
	return w, known
}

// readable reports whether this build can use b: it knows the format and the
// windows, and the size agrees with the header.
func (b page) readable() bool {
	if len(b) < headBytes || b[offVersion] != formatVersion || b[offKind] != kindCounters {
		return false
	}
	n := int(b[offWindows])
	if n > MaxWindows || b[offSlots] == 0 || len(b) < headBytes+n*windowBytes {
		return false
	}
	if le.Uint16(b[offSpare:]) != 0 || int64(le.Uint64(b[offFloorTime:])) < 0 {
		return false
	}
	size := headBytes + n*windowBytes
	record := fingerprintBytes + recordHeadBytes
	for i := range n {
		w, known := readWindow(b[headBytes+i*windowBytes:])
		if !known {
			return false
		}
		usage, floor := usageBytes(w)
		size += floor
		record += usage
	}
	return len(b) == size+int(b[offSlots])*record
}

// layout reads b's own layout; b must be readable.
func (b page) layout() Layout {
	windows := make([]limit.Window, b[offWindows])
	for i := range windows {
		windows[i], _ = readWindow(b[headBytes+i*windowBytes:])
	}
	return NewLayout(windows, int(b[offSlots]))
}

func (b page) epoch() uint32      { return le.Uint32(b[offEpoch:]) }
func (b page) generation() uint16 { return le.Uint16(b[offGeneration:]) & generationMask }
func (b page) floorTime() int64   { return int64(le.Uint64(b[offFloorTime:])) }

func (b page) setFloorTime(t int64) { le.PutUint64(b[offFloorTime:], uint64(t)) }

// find returns the slot of the key with that fingerprint, or -1. It compares two
// fingerprints at once.
func (b page) find(l *Layout, fingerprint uint32) int {
	prints, wanted := b[l.fingerprints:l.records], uint64(fingerprint)<<32|uint64(fingerprint)
	for i := 0; len(prints) >= 2*fingerprintBytes; i += 2 {
		differs := le.Uint64(prints) ^ wanted
		if uint32(differs) == 0 && !b.free(l, i) {
			return i
		}
		if differs>>32 == 0 && !b.free(l, i+1) {
			return i + 1
		}
		prints = prints[2*fingerprintBytes:]
	}
	if last := l.Slots - 1; len(prints) > 0 && le.Uint32(prints) == fingerprint && !b.free(l, last) {
		return last
	}
	return -1
}

func (b page) record(l *Layout, slot int) []byte {
	at := l.records + slot*l.recordBytes
	return b[at : at+l.recordBytes]
}

// free reports whether the slot has no record.
func (b page) free(l *Layout, slot int) bool { return le.Uint64(b.record(l, slot)) == 0 }

// time returns when the slot's record was last written.
func (b page) time(l *Layout, slot int) int64 {
	return int64(le.Uint64(b.record(l, slot)) - 1)
}

func (b page) recordGeneration(l *Layout, slot int) uint16 {
	return le.Uint16(b.record(l, slot)[8:]) & generationMask
}

// place puts an empty record into the slot for the key with that fingerprint.
func (b page) place(l *Layout, slot int, fingerprint uint32) {
	clear(b.record(l, slot))
	le.PutUint32(b[l.fingerprints+slot*fingerprintBytes:], fingerprint)
	le.PutUint16(b.record(l, slot)[8:], b.generation())
}

func (b page) setTime(l *Layout, slot int, t int64) {
	le.PutUint64(b.record(l, slot), uint64(t)+1)
}

// wasReset reports whether the slot's record says that the key was reset.
func (b page) wasReset(l *Layout, slot int) bool {
	return le.Uint16(b.record(l, slot)[8:])&resetBit != 0
}

// mark sets the generation of the slot's record, and whether it was reset.
func (b page) mark(l *Layout, slot int, generation uint16, reset bool) {
	if reset {
		generation |= resetBit
	}
	le.PutUint16(b.record(l, slot)[8:], generation)
}

// nextGeneration increments the page's generation and returns it.
func (b page) nextGeneration() uint16 {
	le.PutUint16(b[offGeneration:], (b.generation()+1)&generationMask)
	return b.generation()
}

// usage returns the usage of window i in the slot's record. A log is decoded into
// log.
func (b page) usage(l *Layout, slot, i int, log []int64) (u limit.Usage) {
	b.read(l, slot, i, log, &u)
	return u
}

// read is usage into u.
func (b page) read(l *Layout, slot, i int, log []int64, u *limit.Usage) {
	w, p := &l.Windows[i], b.record(l, slot)[recordHeadBytes+l.usages[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		*u = limit.Usage{
			Log: readLog(p, b.time(l, slot), int(w.Units), log),
			Cut: le.Uint16(p)&cutBit != 0,
		}
	case limit.TokenBucket:
		*u = limit.Usage{
			Tokens: limit.Tokens{Lo: le.Uint64(p), Hi: int64(int32(le.Uint32(p[8:])))},
			EndNs:  int64(le.Uint64(p[12:])),
		}
	case limit.Concurrency:
		h := b.held(l, slot)
		*u = limit.Usage{Used: h.Total()}
	default:
		readCounts(w, p, u)
	}
}

func (b page) setUsage(l *Layout, slot, i int, u *limit.Usage) {
	w, p := &l.Windows[i], b.record(l, slot)[recordHeadBytes+l.usages[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		putLog(p, u)
	case limit.TokenBucket:
		le.PutUint64(p, u.Tokens.Lo)
		le.PutUint32(p[8:], uint32(u.Tokens.Hi))
		le.PutUint64(p[12:], uint64(u.EndNs))
	default:
		putCounts(w, p, u)
	}
}

// floor returns the page's floor of window i; see limit.Window.Floor.
func (b page) floor(l *Layout, i int) (f limit.Usage) {
	w, p := &l.Windows[i], b[l.floors[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return limit.Usage{Used: le.Uint32(p), EndNs: int64(le.Uint64(p[4:]))}
	case limit.TokenBucket:
		return limit.Usage{Used: le.Uint32(p), Prev: le.Uint32(p[4:]), EndNs: int64(le.Uint64(p[8:]))}
	default:
		readCounts(w, p, &f)
		return f
	}
}

func (b page) setFloor(l *Layout, i int, f limit.Usage) {
	w, p := &l.Windows[i], b[l.floors[i]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		le.PutUint32(p, f.Used)
		le.PutUint64(p[4:], uint64(f.EndNs))
	case limit.TokenBucket:
		le.PutUint32(p, f.Used)
		le.PutUint32(p[4:], f.Prev)
		le.PutUint64(p[8:], uint64(f.EndNs))
	default:
		putCounts(w, p, &f)
	}
}

// readCounts reads a usage that is stored alike in records and floors.
func readCounts(w *limit.Window, p []byte, u *limit.Usage) {
	*u = limit.Usage{Used: le.Uint32(p)}
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		u.Prev = le.Uint32(p[4:])
	case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
		end := le.Uint64(p[4:])
		u.EndNs, u.Slides = int64(end&^slidesBit), end&slidesBit != 0
	}
}

func putCounts(w *limit.Window, p []byte, u *limit.Usage) {
	le.PutUint32(p, u.Used)
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		le.PutUint32(p[4:], u.Prev)
	case w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0:
		end := uint64(u.EndNs)
		if u.Slides {
			end |= slidesBit
		}
		le.PutUint64(p[4:], end)
	}
}

// readLog decodes a log written at last into log. No unit is newer than last or
// more than 2⁵⁶ ns older, so the low 56 bits are enough to restore its time.
func readLog(p []byte, last int64, maxUnits int, log []int64) []int64 {
	log = log[:0]
	for i := range min(int(le.Uint16(p)&^cutBit), maxUnits) {
		at := 2 + i*unitBytes
		low := uint64(le.Uint32(p[at:])) | uint64(le.Uint16(p[at+4:]))<<32 | uint64(p[at+6])<<48
		log = append(log, last-int64((uint64(last)-low)&unitMask))
	}
	return log
}

func putLog(p []byte, u *limit.Usage) {
	units := uint16(len(u.Log))
	if u.Cut {
		units |= cutBit
	}
	le.PutUint16(p, units)
	for i, t := range u.Log {
		at := 2 + i*unitBytes
		le.PutUint32(p[at:], uint32(t))
		le.PutUint16(p[at+4:], uint16(t>>32))
		p[at+6] = byte(t >> 48)
	}
}

// convert returns b, which has layout from, in layout to. Windows that both have
// keep their usage, new ones start empty, and the others are dropped.
func (b page) convert(from, to *Layout, epoch uint32) page {
	out := newPage(to, epoch)
	le.PutUint16(out[offGeneration:], b.generation())
	out.setFloorTime(b.floorTime())
	for slot := range min(from.Slots, to.Slots) {
		if b.free(from, slot) {
			continue
		}
		at := from.fingerprints + slot*fingerprintBytes
		copy(out[to.fingerprints+slot*fingerprintBytes:], b[at:at+fingerprintBytes])
		copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])
		if to.holds {
			out.setNumber(to, slot, firstNumber)
		}
	}
	for i, w := range to.Windows {
		j := slices.IndexFunc(from.Windows, w.Same)
		if j < 0 {
			continue
		}
		for slot := ofFloor; slot < min(from.Slots, to.Slots); slot++ {
			switch {
			case slot != ofFloor && b.free(from, slot):
			case w.Algorithm == limit.Concurrency:
				out.moveHeld(to, slot, b, from, slot)
			case w.Algorithm == algorithmLease && slot != ofFloor:
				copy(out.lease(to, slot), b.lease(from, slot))
			case w.Algorithm == algorithmLease: // has no floor
			case slot == ofFloor:
				out.setFloor(to, i, b.floor(from, j))
			default:
				u := refit(b.usage(from, slot, j, nil), int(w.Units))
				out.setUsage(to, slot, i, &u)
			}
		}
	}
	return out
}

// refit fits u's log into that many units. If there is room again for units that
// were dropped, copies of the oldest unit take their place, so that the key gains
// no quota.
func refit(u limit.Usage, units int) limit.Usage {
	if drop := len(u.Log) - units; drop > 0 {
		u.Log, u.Cut = u.Log[drop:], true
	}
	for u.Cut && len(u.Log) > 0 && len(u.Log) < units {
		u.Log = append(u.Log[:1:1], u.Log...)
	}
	return u
}
