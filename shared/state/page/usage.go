package page

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// A page has three things of each window: its definition, its usage in each record, and its floor. A new algorithm
// takes a line in the table of usages, and a case in fieldsOf. If its floor is not like its usage, it has its sizes in
// usageBytes instead, and a case in the functions that read and write. If its definition has something in the extra
// bytes or the flags, PutWindow and ReadWindow have a case too.

// The definition of a window, in pages and in the directory:
//
//	 0  u8   algorithm
//	 1  u8   flags; bit 0: elastic: each hit prolongs a fixed_window_per_key, each denied one a block
//	 2  u16  jitter percent of a fixed_window, units of a log, windows of a lease
//	 4  i64  period
//	12  i64  offset
const (
	offFlags  = 1
	offExtra  = 2
	offPeriod = 4
	offOffset = 12

	elasticBit = 1

	// WindowBytes is the size of a definition.
	WindowBytes = 20
)

// PutWindow writes down a definition, without its limits.
func PutWindow(b []byte, w *limit.Window) {
	b[0] = byte(w.Algorithm)
	b[offFlags] = 0
	if w.Elastic {
		b[offFlags] = elasticBit
	}
	extra := uint16(w.Jitter)
	if w.Algorithm == limit.SlidingWindowLog || w.Algorithm == Lease {
		extra = w.Units
	}
	le.PutUint16(b[offExtra:], extra)
	le.PutUint64(b[offPeriod:], uint64(w.PeriodNs))
	le.PutUint64(b[offOffset:], uint64(w.OffsetNs))
}

// ReadWindow returns the definition at b, and whether this build knows it.
func ReadWindow(b []byte) (w limit.Window, known bool) {
	w = limit.Window{
		Algorithm: limit.Algorithm(b[0]),
		PeriodNs:  int64(le.Uint64(b[offPeriod:])),
		OffsetNs:  int64(le.Uint64(b[offOffset:])),
		Elastic:   b[offFlags] == elasticBit,
	}
	extra := le.Uint16(b[offExtra:])
	maxExtra := uint16(0)
	switch w.Algorithm {
	case limit.FixedWindow:
		w.Jitter = uint8(extra)
		maxExtra = 100
	case limit.SlidingWindowLog:
		w.Units = extra
		maxExtra = limit.MaxLog
	case Lease:
		w.Units = extra
		maxExtra = MaxWindows
	default: // no extra
	}
	mayBeElastic := w.Algorithm == limit.FixedWindowPerKey || w.Algorithm == limit.Block
	usage, _ := usageBytes(&w)
	known = usage != 0 &&
		extra <= maxExtra &&
		(b[offFlags] == 0 || w.Elastic && mayBeElastic) &&
		w.InRange()
	return w, known
}

// The usage of each window in a record, and its floor. Times that are not given are 64 bits of nanoseconds since the
// Unix epoch; a floor is like the usage unless it says otherwise.
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
//	concurrency              see holds.go; it is the last column
//	a lease                  see package leased; it is the only column
const (
	countBytes   = 4
	endBytes     = 8
	twoCounts    = 2 * countBytes
	logHeadBytes = 2
	unitBytes    = 7
	tokensLow    = 8 // bytes of the low part of an i96
	tokensBytes  = 12
	bucketBytes  = tokensBytes + endBytes

	logFloorBytes    = countBytes + endBytes
	bucketFloorBytes = twoCounts + endBytes

	slidesBit = 1 << 63
	cutBit    = 1 << 15
	unitMask  = 1<<56 - 1
)

// Lease is the algorithm of what a proxy has leased of a key, see package leased. For a page it is only bytes. A table
// is registered by its windows, also a lease table: so a lease is a window here, of an algorithm that package limit
// lacks.
const Lease = limit.Algorithm(64)

// usageBytes is the size of a window's usage in a record, and of its floor; both
// are 0 for an algorithm that this build does not know.
func usageBytes(w *limit.Window) (usage, floor int) {
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return logHeadBytes + int(w.Units)*unitBytes, logFloorBytes
	case limit.TokenBucket:
		return bucketBytes, bucketFloorBytes
	case limit.Concurrency:
		return holdsBytes, holdsFloorBytes
	case Lease:
		return leased.Bytes(int(w.Units)), 0
	default:
		usage = fieldsOf(w).bytes()
		return usage, usage
	}
}

// fields are those of a usage that is stored alike in records and floors, in this order.
type fields struct{ used, prev, end bool }

// fieldsOf returns them for a window; none for an algorithm that this build does not know.
func fieldsOf(w *limit.Window) fields {
	switch w.Algorithm {
	case limit.FixedWindow:
		return fields{used: true, end: w.Jitter > 0}
	case limit.Calendar:
		return fields{used: true}
	case limit.FixedWindowPerKey:
		return fields{used: true, end: true}
	case limit.SlidingWindowCounter:
		return fields{used: true, prev: true}
	case limit.Block:
		return fields{end: true}
	default:
		return fields{}
	}
}

func (f fields) bytes() (n int) {
	if f.used {
		n += countBytes
	}
	if f.prev {
		n += countBytes
	}
	if f.end {
		n += endBytes
	}
	return n
}

// usageOf returns the bytes from the usage of a column on in the slot's record.
func (p *Page) usageOf(slot int, column Column) []byte {
	return p.record(slot)[recordHeadBytes+p.Layout.usageAt[column]:]
}

// floorOf returns the bytes from the floor of a column on.
func (p *Page) floorOf(column Column) []byte { return p.Bytes[p.Layout.floorAt[column]:] }

// Holds and leases have functions of their own (holds.go, Lease). All that follow are of a column that counts.

// ReadUsage reads the usage of a column in the slot's record into u. A log is decoded into log.
func (p *Page) ReadUsage(slot int, column Column, log []int64, u *limit.Usage) {
	w, b := &p.Layout.Windows[column], p.usageOf(slot, column)
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		*u = limit.Usage{
			Log: readLog(b, p.Time(slot), int(w.Units), log),
			Cut: le.Uint16(b)&cutBit != 0,
		}
	case limit.TokenBucket:
		*u = limit.Usage{
			Tokens: limit.Tokens{Lo: le.Uint64(b), Hi: int64(int32(le.Uint32(b[tokensLow:])))},
			EndNs:  int64(le.Uint64(b[tokensBytes:])),
		}
	default:
		fieldsOf(w).read(b, u)
	}
}

// SetUsage sets what ReadUsage reads.
func (p *Page) SetUsage(slot int, column Column, u *limit.Usage) {
	w, b := &p.Layout.Windows[column], p.usageOf(slot, column)
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		putLog(b, u)
	case limit.TokenBucket:
		le.PutUint64(b, u.Tokens.Lo)
		le.PutUint32(b[tokensLow:], uint32(u.Tokens.Hi))
		le.PutUint64(b[tokensBytes:], uint64(u.EndNs))
	default:
		fieldsOf(w).put(b, u)
	}
}

// Floor returns the page's floor of a column; see limit.Window.Floor.
func (p *Page) Floor(column Column) limit.Floor {
	w, b := &p.Layout.Windows[column], p.floorOf(column)
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return limit.Floor{Used: le.Uint32(b), EndNs: int64(le.Uint64(b[countBytes:]))}
	case limit.TokenBucket:
		return limit.Floor{
			Used: le.Uint32(b), Prev: le.Uint32(b[countBytes:]), EndNs: int64(le.Uint64(b[twoCounts:])),
		}
	default:
		var u limit.Usage
		fieldsOf(w).read(b, &u)
		return limit.Floor{Used: u.Used, Prev: u.Prev, EndNs: u.EndNs}
	}
}

// SetFloor sets what Floor returns.
func (p *Page) SetFloor(column Column, f limit.Floor) {
	w, b := &p.Layout.Windows[column], p.floorOf(column)
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		le.PutUint32(b, f.Used)
		le.PutUint64(b[countBytes:], uint64(f.EndNs))
	case limit.TokenBucket:
		le.PutUint32(b, f.Used)
		le.PutUint32(b[countBytes:], f.Prev)
		le.PutUint64(b[twoCounts:], uint64(f.EndNs))
	default:
		fieldsOf(w).put(b, &limit.Usage{Used: f.Used, Prev: f.Prev, EndNs: f.EndNs})
	}
}

func (f fields) read(b []byte, u *limit.Usage) {
	*u = limit.Usage{}
	if f.used {
		u.Used = le.Uint32(b)
		b = b[countBytes:]
	}
	if f.prev {
		u.Prev = le.Uint32(b)
		b = b[countBytes:]
	}
	if f.end {
		end := le.Uint64(b)
		u.EndNs = int64(end &^ slidesBit)
		u.Slides = end&slidesBit != 0
		if !f.used && end != 0 { // a block that runs counts 1: see limit.Usage
			u.Used = 1
		}
	}
}

func (f fields) put(b []byte, u *limit.Usage) {
	if f.used {
		le.PutUint32(b, u.Used)
		b = b[countBytes:]
	}
	if f.prev {
		le.PutUint32(b, u.Prev)
		b = b[countBytes:]
	}
	if f.end {
		end := uint64(u.EndNs)
		if u.Slides {
			end |= slidesBit
		}
		le.PutUint64(b, end)
	}
}

// readLog decodes a log written at last into log. No unit is newer than last or
// more than 2⁵⁶ ns older, so the low 56 bits are enough to restore its time.
func readLog(b []byte, last int64, maxUnits int, log []int64) []int64 {
	log = log[:0]
	for i := range min(int(le.Uint16(b)&^cutBit), maxUnits) {
		unit := b[logHeadBytes+i*unitBytes:]
		low := uint64(le.Uint32(unit)) | uint64(le.Uint16(unit[4:]))<<32 | uint64(unit[6])<<48
		age := (uint64(last) - low) & unitMask
		log = append(log, last-int64(age))
	}
	return log
}

func putLog(b []byte, u *limit.Usage) {
	units := uint16(len(u.Log))
	if u.Cut {
		units |= cutBit
	}
	le.PutUint16(b, units)
	for i, t := range u.Log {
		unit := b[logHeadBytes+i*unitBytes:]
		le.PutUint32(unit, uint32(t))
		le.PutUint16(unit[4:], uint16(t>>32))
		unit[6] = byte(t >> 48)
	}
}
