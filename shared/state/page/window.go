package page

import "github.com/sluice-ratelimit/sluice/shared/limit"

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
