package quota

import (
	"encoding/binary"
	"errors"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

// A value in the store is what one key has counted:
//
//	nonce       8 bytes, another one for each write
//	version     1 byte
//	generation  8 bytes, little-endian like all that follows
//	time        8 bytes: the store's clock when it was decided
//	stamp       8 bytes: until when what logs and buckets have counted may be spent
//	windows     1 byte: how many; each is its identity and its usage. Those that the
//	            last operation named come first, in its order
//
// A window and its usage are varints, signed ones in zigzag:
//
//	pays      by window: see limit.Window.Pays                    version 2, as what follows
//	quiet     until when nothing is granted, from the time on
//	rows      how many; each is worker (8 bytes) · since · number · charged · held ·
//	          time − when it was said · hold: what proxies hold of the key
//
// Version 2 is written for keys that hold only.
//
//	identity  algorithm · period · offset · jitter · flags
//	usage     used, end                                           fixed windows
//	          used, previous                                      sliding counter
//	          n, n × (time − last, units)                         log
//	          limit, burst, stamp − its own stamp, end, high, low  bucket
const (
	version    = 1 // a release reads a version before the first one writes it
	holding    = 2 // the version of values with rows
	headBytes  = NonceBytes + 1 + 8 + 8 + 8 + 1
	flagElas   = 1
	flagSlides = 2
	flagCut    = 4
)

var (
	errNewer  = errors.New("the value was written by a newer release")
	errDamage = errors.New("the value is damaged")
)

// record is a value, read. It holds the windows of all who ask for the key: as the
// policy has them, not shifted, and read from a store without the limits that the value
// does not have.
type record struct {
	generation uint64 // random when made; changed by what takes usages away
	sinceNs    int64  // of a new one: since when the store has its state
	lease.State
}

// append appends the value's bytes to b.
func (r *record) append(b []byte, nonce uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, nonce)
	if r.Rows != nil {
		b = append(b, holding)
	} else {
		b = append(b, version)
	}
	b = binary.LittleEndian.AppendUint64(b, r.generation)
	stamp := r.NowNs
	for i := range r.Windows {
		stamp = max(stamp, r.Stamp(i))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(r.NowNs))
	b = binary.LittleEndian.AppendUint64(b, uint64(stamp))
	b = append(b, byte(len(r.Windows)))
	for i := range r.Windows {
		b = appendWindow(b, &r.Windows[i], &r.Usages[i], stamp-r.Stamp(i))
	}
	if r.Rows != nil {
		b = r.appendRows(b)
	}
	return b
}

func appendWindow(b []byte, w *limit.Window, u *limit.Usage, beforeStamp int64) []byte {
	b = append(b, byte(w.Algorithm))
	b = binary.AppendUvarint(b, uint64(w.PeriodNs))
	b = binary.AppendUvarint(b, uint64(w.OffsetNs))
	b = append(b, w.Jitter, flag(w.Elastic, flagElas)|flag(u.Slides, flagSlides)|flag(u.Cut, flagCut))
	switch w.Algorithm {
	case limit.SlidingWindowCounter:
		b = binary.AppendUvarint(b, uint64(u.Used))
		return binary.AppendUvarint(b, uint64(u.Prev))
	case limit.SlidingWindowLog:
		return appendLog(b, u.Log)
	case limit.TokenBucket:
		b = binary.AppendUvarint(b, uint64(w.Limit))
		b = binary.AppendUvarint(b, uint64(w.Burst))
		b = binary.AppendUvarint(b, uint64(beforeStamp))
		b = binary.AppendUvarint(b, uint64(u.EndNs))
		b = binary.AppendVarint(b, u.Tokens.Hi)
		return binary.AppendUvarint(b, u.Tokens.Lo)
	default:
		b = binary.AppendUvarint(b, uint64(u.Used))
		return binary.AppendUvarint(b, uint64(u.EndNs))
	}
}

func flag(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// appendLog writes units of one instant together.
func appendLog(b []byte, log []int64) []byte {
	instants, last := 0, int64(-1)
	for _, t := range log {
		if t != last {
			instants, last = instants+1, t
		}
	}
	b = binary.AppendUvarint(b, uint64(instants))
	for i, last := 0, int64(0); i < len(log); {
		n := 1
		for i+n < len(log) && log[i+n] == log[i] {
			n++
		}
		b = binary.AppendUvarint(b, uint64(log[i]-last))
		b = binary.AppendUvarint(b, uint64(n))
		last, i = log[i], i+n
	}
	return b
}

// parse reads a value.
func parse(b []byte) (*record, error) {
	if len(b) < headBytes {
		return nil, errDamage
	}
	v := b[NonceBytes]
	if v > holding {
		return nil, errNewer
	}
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[NonceBytes+1+8*i:])) }
	now, stamp, n := at(1), at(2), int(b[headBytes-1])
	if v < version || n > lease.MaxWindows || now < 0 || stamp < now {
		return nil, errDamage
	}
	r := &record{generation: uint64(at(0)), State: lease.NewState(now, make([]limit.Window, n))}
	rest := reader{b: b[headBytes:], latest: stamp - now}
	for i := range n {
		var before int64
		r.Windows[i], r.Usages[i], before = rest.window()
		if r.Windows[i].Algorithm == limit.TokenBucket {
			r.SetStamp(i, stamp-before)
		}
	}
	if v == holding {
		rest.rows(r)
	}
	if rest.bad || len(rest.b) > 0 {
		return nil, errDamage
	}
	return r, nil
}

// reader reads what append has written; bad says that something else is there.
type reader struct {
	b      []byte
	latest int64 // from the value's time to its stamp
	bad    bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uint(bound uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > bound {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

const (
	maxInstant = 1<<63 - 1
	maxUnits   = 1<<32 - 1
)

func (r *reader) window() (w limit.Window, u limit.Usage, beforeStamp int64) {
	w.Algorithm = limit.Algorithm(r.byte())
	w.PeriodNs, w.OffsetNs = int64(r.uint(maxInstant)), int64(r.uint(maxInstant))
	w.Jitter = r.byte()
	flags := r.byte()
	w.Elastic, u.Slides, u.Cut = flags&flagElas != 0, flags&flagSlides != 0, flags&flagCut != 0
	r.bad = r.bad || !w.InRange() || flags > flagElas|flagSlides|flagCut
	switch w.Algorithm {
	case limit.FixedWindow, limit.FixedWindowPerKey, limit.Calendar:
		u.Used, u.EndNs = uint32(r.uint(maxUnits)), int64(r.uint(maxInstant))
	case limit.SlidingWindowCounter:
		u.Used, u.Prev = uint32(r.uint(maxUnits)), uint32(r.uint(maxUnits))
	case limit.SlidingWindowLog:
		u.Log = r.log()
	case limit.TokenBucket:
		w.Limit, w.Burst = uint32(r.uint(maxUnits)), uint32(r.uint(maxUnits))
		beforeStamp = int64(r.uint(uint64(r.latest)))
		u.EndNs = int64(r.uint(maxInstant))
		u.Tokens.Hi, u.Tokens.Lo = r.int(), r.uint(1<<64-1)
		r.bad = r.bad || u.Tokens.Hi >= 1<<31 || u.Tokens.Hi <= -1<<31
	default:
		r.bad = true
	}
	return w, u, beforeStamp
}

func (r *reader) log() (log []int64) {
	last := int64(0)
	for range r.uint(limit.MaxLog) {
		last += int64(r.uint(uint64(maxInstant - last)))
		n := r.uint(limit.MaxLog)
		if r.bad || n == 0 || len(log)+int(n) > limit.MaxLog {
			r.bad = true
			return nil
		}
		for range n {
			log = append(log, last)
		}
	}
	return log
}
