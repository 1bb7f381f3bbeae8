package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// What a record and the floor hold of each window. Times that are not given are 64 bits of
// nanoseconds since the Unix epoch; a floor is like the usage unless it says otherwise.
//
//	fixed_window             u32 used; with jitter also u64 end
//	calendar                 u32 used (a fixed_window of months)
//	fixed_window_per_key     u32 used, u64 end in the low 63 bits and, in the top
//	                         bit, whether the window slides
//	sliding_window_log       u16 units, in the top bit whether older ones were
//	                         dropped (see limit.Usage.Cut), then the low 56 bits
//	                         of each unit's time, oldest first;
//	                         floor: u32 units, u64 newest time
//	sliding_window_counter   u32 units of the current period, u32 of the previous
//	token_bucket             i96 tokens (see limit.Tokens), u64 when full with a
//	                         stamp in its low bits (see limit.NewStamp);
//	                         floor: u32 tokens gained a period, u32 burst,
//	                         u64 when full, stamped
//	block                    u64 end, 0 = none runs; it comes after the windows
//	concurrency              see holdpage.go; it is the last column
//	a lease                  see lease.go; it is the only column of its table
const (
	countBytes   = 4
	endBytes     = 8
	twoCounts    = 2 * countBytes
	countAndEnd  = countBytes + endBytes
	logHeadBytes = 2
	unitBytes    = 7
	bucketBytes  = 12 + endBytes

	logFloorBytes    = countAndEnd
	bucketFloorBytes = twoCounts + endBytes

	slidesBit = 1 << 63
	cutBit    = 1 << 15
	unitMask  = 1<<56 - 1
)

// usageBytes is the size of a window's usage in a record, and of its floor; both
// are 0 for an algorithm that this build does not know.
func usageBytes(w *limit.Window) (usage, floor int) {
	switch w.Algorithm {
	case limit.FixedWindow:
		if w.Jitter > 0 {
			return countAndEnd, countAndEnd
		}
		return countBytes, countBytes
	case limit.Calendar:
		return countBytes, countBytes
	case limit.FixedWindowPerKey:
		return countAndEnd, countAndEnd
	case limit.SlidingWindowLog:
		return logHeadBytes + int(w.Units)*unitBytes, logFloorBytes
	case limit.SlidingWindowCounter:
		return twoCounts, twoCounts
	case limit.TokenBucket:
		return bucketBytes, bucketFloorBytes
	case limit.Block:
		return endBytes, endBytes
	case limit.Concurrency:
		return holdsBytes, holdsFloorBytes
	case algorithmLease:
		return leaseBytes + int(w.Units)*standingBytes, 0
	}
	return 0, 0
}

// usageOf returns the bytes of the usage of a column in the slot's record.
func (b page) usageOf(l *Layout, slot, column int) []byte {
	return b.record(l, slot)[recordHeadBytes+l.usageAt[column]:]
}

// usage returns the usage of a column in the slot's record. A log is decoded into
// log.
func (b page) usage(l *Layout, slot, column int, log []int64) (u limit.Usage) {
	b.readUsage(l, slot, column, log, &u)
	return u
}

// readUsage is usage into u.
func (b page) readUsage(l *Layout, slot, column int, log []int64, u *limit.Usage) {
	w, p := &l.Windows[column], b.usageOf(l, slot, column)
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
		h := b.holds(l, slot)
		*u = limit.Usage{Used: h.Total()}
	default:
		readCounts(w, p, u)
	}
}

func (b page) setUsage(l *Layout, slot, column int, u *limit.Usage) {
	w, p := &l.Windows[column], b.usageOf(l, slot, column)
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

// floor returns the page's floor of a column; see limit.Window.Floor.
func (b page) floor(l *Layout, column int) limit.Floor {
	w, p := &l.Windows[column], b[l.floorAt[column]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return limit.Floor{Used: le.Uint32(p), EndNs: int64(le.Uint64(p[4:]))}
	case limit.TokenBucket:
		return limit.Floor{Used: le.Uint32(p), Prev: le.Uint32(p[4:]), EndNs: int64(le.Uint64(p[8:]))}
	default:
		var u limit.Usage
		readCounts(w, p, &u)
		return limit.Floor{Used: u.Used, Prev: u.Prev, EndNs: u.EndNs}
	}
}

func (b page) setFloor(l *Layout, column int, f limit.Floor) {
	w, p := &l.Windows[column], b[l.floorAt[column]:]
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		le.PutUint32(p, f.Used)
		le.PutUint64(p[4:], uint64(f.EndNs))
	case limit.TokenBucket:
		le.PutUint32(p, f.Used)
		le.PutUint32(p[4:], f.Prev)
		le.PutUint64(p[8:], uint64(f.EndNs))
	default:
		putCounts(w, p, &limit.Usage{Used: f.Used, Prev: f.Prev, EndNs: f.EndNs})
	}
}

// readCounts reads a usage that is stored alike in records and floors.
func readCounts(w *limit.Window, p []byte, u *limit.Usage) {
	if w.Algorithm == limit.Block {
		*u = limit.Usage{EndNs: int64(le.Uint64(p))}
		if u.EndNs != 0 {
			u.Used = 1
		}
		return
	}
	*u = limit.Usage{Used: le.Uint32(p)}
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		u.Prev = le.Uint32(p[4:])
	case hasOwnEnd(w):
		end := le.Uint64(p[4:])
		u.EndNs = int64(end &^ slidesBit)
		u.Slides = end&slidesBit != 0
	}
}

func putCounts(w *limit.Window, p []byte, u *limit.Usage) {
	if w.Algorithm == limit.Block {
		le.PutUint64(p, uint64(u.EndNs))
		return
	}
	le.PutUint32(p, u.Used)
	switch {
	case w.Algorithm == limit.SlidingWindowCounter:
		le.PutUint32(p[4:], u.Prev)
	case hasOwnEnd(w):
		end := uint64(u.EndNs)
		if u.Slides {
			end |= slidesBit
		}
		le.PutUint64(p[4:], end)
	}
}

// hasOwnEnd reports whether the window of each key ends at another time.
func hasOwnEnd(w *limit.Window) bool {
	return w.Algorithm == limit.FixedWindowPerKey || w.Jitter > 0
}

// readLog decodes a log written at last into log. No unit is newer than last or
// more than 2⁵⁶ ns older, so the low 56 bits are enough to restore its time.
func readLog(p []byte, last int64, maxUnits int, log []int64) []int64 {
	log = log[:0]
	for i := range min(int(le.Uint16(p)&^cutBit), maxUnits) {
		unit := p[logHeadBytes+i*unitBytes:]
		low := uint64(le.Uint32(unit)) | uint64(le.Uint16(unit[4:]))<<32 | uint64(unit[6])<<48
		age := (uint64(last) - low) & unitMask
		log = append(log, last-int64(age))
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
		unit := p[logHeadBytes+i*unitBytes:]
		le.PutUint32(unit, uint32(t))
		le.PutUint16(unit[4:], uint16(t>>32))
		unit[6] = byte(t >> 48)
	}
}
