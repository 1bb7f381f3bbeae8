package state

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var le = binary.LittleEndian

// bucket is a bucket's value, read and patched in place.
type bucket []byte

// newBucket returns an empty bucket.
func newBucket(l *Layout, epoch uint32) bucket {
	b := bucket(make([]byte, l.size))
	b[offVersion], b[offKind] = formatVersion, kindCounters
	b[offSlots], b[offWindows] = byte(l.Slots), byte(len(l.Windows))
	le.PutUint32(b[offEpoch:], epoch)
	for i, w := range l.Windows {
		putWindow(b[headBytes+i*windowBytes:], w)
	}
	return b
}

func putWindow(b []byte, w limit.Window) {
	b[0], b[1] = byte(w.Algorithm), 0
	le.PutUint16(b[2:], 0)
	le.PutUint64(b[4:], uint64(w.PeriodNs))
	le.PutUint64(b[12:], uint64(w.OffsetNs))
}

// readWindow returns the definition at b, and whether this build knows it.
func readWindow(b []byte) (limit.Window, bool) {
	w := limit.Window{
		Algorithm: limit.Algorithm(b[0]),
		PeriodNs:  int64(le.Uint64(b[4:])),
		OffsetNs:  int64(le.Uint64(b[12:])),
	}
	known := partBytes(w.Algorithm) != 0 && b[1] == 0 && le.Uint16(b[2:]) == 0 &&
		w.PeriodNs >= limit.MinPeriodNs && w.PeriodNs <= limit.MaxPeriodNs &&
		w.OffsetNs >= 0 && w.OffsetNs < w.PeriodNs
	return w, known
}

// readable reports whether this build can work on b: a format it knows, and a
// size that agrees with what the header says.
func (b bucket) readable() bool {
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
	parts := 0
	for i := range n {
		w, known := readWindow(b[headBytes+i*windowBytes:])
		if !known {
			return false
		}
		parts += partBytes(w.Algorithm)
	}
	slots := int(b[offSlots])
	return len(b) == headBytes+n*windowBytes+parts+slots*(fingerprintBytes+recordHeadBytes+parts)
}

// layout reads b's own layout; b must be readable.
func (b bucket) layout() Layout {
	windows := make([]limit.Window, b[offWindows])
	for i := range windows {
		windows[i], _ = readWindow(b[headBytes+i*windowBytes:])
	}
	return NewLayout(windows, int(b[offSlots]))
}

func (b bucket) epoch() uint32      { return le.Uint32(b[offEpoch:]) }
func (b bucket) generation() uint16 { return le.Uint16(b[offGeneration:]) & generationMask }
func (b bucket) floorTime() int64   { return int64(le.Uint64(b[offFloorTime:])) }

func (b bucket) setFloorTime(t int64) { le.PutUint64(b[offFloorTime:], uint64(t)) }

// find returns the slot of the key with that fingerprint, or -1.
func (b bucket) find(l *Layout, fingerprint uint32) int {
	prints := b[l.fingerprints:l.records]
	for i := 0; i+fingerprintBytes <= len(prints); i += fingerprintBytes {
		if le.Uint32(prints[i:]) == fingerprint {
			if slot := i / fingerprintBytes; !b.free(l, slot) {
				return slot
			}
		}
	}
	return -1
}

func (b bucket) record(l *Layout, slot int) []byte {
	at := l.records + slot*l.recordBytes
	return b[at : at+l.recordBytes]
}

// free reports whether the slot has no record.
func (b bucket) free(l *Layout, slot int) bool { return le.Uint64(b.record(l, slot)) == 0 }

// time returns when the slot's record was last written.
func (b bucket) time(l *Layout, slot int) int64 {
	return int64(le.Uint64(b.record(l, slot)) - 1)
}

func (b bucket) recordGeneration(l *Layout, slot int) uint16 {
	return le.Uint16(b.record(l, slot)[8:]) & generationMask
}

// usage returns what the slot's record holds of window i.
func (b bucket) usage(l *Layout, slot, i int) limit.Usage {
	return readPart(l.Windows[i].Algorithm, b.record(l, slot)[recordHeadBytes+l.parts[i]:])
}

func (b bucket) setUsage(l *Layout, slot, i int, u limit.Usage) {
	putPart(l.Windows[i].Algorithm, b.record(l, slot)[recordHeadBytes+l.parts[i]:], u)
}

// place gives the slot to a key.
func (b bucket) place(l *Layout, slot int, fingerprint uint32) {
	clear(b.record(l, slot))
	le.PutUint32(b[l.fingerprints+slot*fingerprintBytes:], fingerprint)
	le.PutUint16(b.record(l, slot)[8:], b.generation())
}

func (b bucket) setTime(l *Layout, slot int, t int64) {
	le.PutUint64(b.record(l, slot), uint64(t)+1)
}

// floor returns what the bucket's floor holds of window i.
func (b bucket) floor(l *Layout, i int) limit.Usage {
	return readPart(l.Windows[i].Algorithm, b[l.floor+l.parts[i]:])
}

func (b bucket) setFloor(l *Layout, i int, u limit.Usage) {
	u.Slides = false
	putPart(l.Windows[i].Algorithm, b[l.floor+l.parts[i]:], u)
}

func readPart(a limit.Algorithm, p []byte) limit.Usage {
	u := limit.Usage{Used: le.Uint32(p)}
	if a == limit.FixedWindowPerKey {
		end := le.Uint64(p[4:])
		u.EndNs, u.Slides = int64(end&^slidesBit), end&slidesBit != 0
	}
	return u
}

func putPart(a limit.Algorithm, p []byte, u limit.Usage) {
	le.PutUint32(p, u.Used)
	if a == limit.FixedWindowPerKey {
		end := uint64(u.EndNs)
		if u.Slides {
			end |= slidesBit
		}
		le.PutUint64(p[4:], end)
	}
}

// convert returns b, which has layout from, in layout to: windows that both
// have keep their usage, new ones start empty, vanished ones are dropped.
func (b bucket) convert(from, to *Layout, epoch uint32) bucket {
	out := newBucket(to, epoch)
	le.PutUint16(out[offGeneration:], b.generation())
	out.setFloorTime(b.floorTime())
	for i, w := range to.Windows {
		for j, v := range from.Windows {
			if w.Same(v) {
				out.setFloor(to, i, b.floor(from, j))
			}
		}
	}
	for slot := range min(from.Slots, to.Slots) {
		if b.free(from, slot) {
			continue
		}
		at := from.fingerprints + slot*fingerprintBytes
		copy(out[to.fingerprints+slot*fingerprintBytes:], b[at:at+fingerprintBytes])
		copy(out.record(to, slot), b.record(from, slot)[:recordHeadBytes])
		for i, w := range to.Windows {
			for j, v := range from.Windows {
				if w.Same(v) {
					out.setUsage(to, slot, i, b.usage(from, slot, j))
				}
			}
		}
	}
	return out
}
