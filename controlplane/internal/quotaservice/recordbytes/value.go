// Package recordbytes is the bytes of a balance.Record, as the store keeps them: the format that all releases share.
//
// Its invariant: what Append writes, Parse reads, and it reads what the release before has written. It knows nothing of
// the store, and not what is counted for.
package recordbytes

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A value in the store is what one key has counted:
//
//	nonce       8 bytes, another one for each write
//	version     1 byte
//	generation  8 bytes, little-endian like all that follows
//	time        8 bytes: the store's clock when it was decided
//	spendBy     8 bytes: until when what has been counted may be spent: balance.Record.SpendByNs
//	windows     1 byte: how many; each is its identity and its usage. Those that the
//	            last operation named come first, in its order
//
// A window and its usage are varints, signed ones in zigzag:
//
//	identity  algorithm (1 byte) · period · offset · jitter (1 byte) · flags (1 byte: 1 Elastic, 2 Slides, 4 Cut)
//	usage     used, end                                              fixed windows, block
//	          used, previous                                         sliding counter
//	          n, n × (time − last, units)                            log
//	          limit, burst, before, end, high, low                   bucket
//
// before is how long a bucket's AsOfNs is before the value's spendBy. For example, a key has two buckets at 100, and
// only of the second one a lease lasts, until 130:
//
//	time 100 · spendBy 130 · first bucket: before 30, because its AsOfNs is 100 · second bucket: before 0
//
// Versions with holders go on:
//
//	pays      by window: see limit.Window.Pays
//	0         a number that releases before wrote and no release reads: for how long nothing was granted yet
//	holders   how many; each is worker (8 bytes) · since · number · charged · held ·
//	          time − when its report was noted · hold
//
// The version says what a value has:
//
//	version  holders  block
//	1        no       no
//	2        yes      no     a definition that holds units has asked for the key
//	3        no       yes    one of the windows is a limit.Block
//	4        yes      yes
//
// Support for reading a version ships one release before anything writes it. A release leaves values of versions that
// it does not know alone.
const (
	plainVersion           = 1
	withHolders, withBlock = 1, 2
	newestVersion          = plainVersion + withHolders + withBlock

	flagElastic, flagSlides, flagCut = 1, 2, 4
)

// NonceBytes is the size of the nonce.
const NonceBytes = 8

// Why a value is not read.
var (
	ErrNewer  = errors.New("the value was written by a newer release")
	ErrDamage = errors.New("the value is damaged")
)

// Append appends the record's bytes to b.
func Append(b []byte, r *balance.Record, nonce uint64) []byte {
	spendBy := r.SpendByNs()
	b = binary.LittleEndian.AppendUint64(b, nonce)
	b = append(b, version(r))
	b = binary.LittleEndian.AppendUint64(b, r.Generation)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.NowNs))
	b = binary.LittleEndian.AppendUint64(b, uint64(spendBy))
	b = append(b, byte(len(r.Windows)))
	for i := range r.Windows {
		b = appendWindow(b, &r.Windows[i], &r.Usages[i], spendBy)
	}
	if r.HasHolders {
		b = appendHolders(b, r)
	}
	return b
}

// version is that of the value's bytes.
func version(r *balance.Record) byte {
	return plainVersion + flag(r.HasHolders, withHolders) + flag(hasBlock(r), withBlock)
}

// versionHas reports whether a value of that version has holders or a block: the version is 1 more than the sum of
// withHolders and withBlock, as far as it has them.
func versionHas(version, what byte) bool { return (version-plainVersion)&what != 0 }

func hasBlock(r *balance.Record) bool {
	return slices.ContainsFunc(r.Windows, func(w limit.Window) bool { return w.Algorithm == limit.Block })
}

// Parse reads a value.
func Parse(b []byte) (*balance.Record, error) {
	d := decoder{rest: b}
	d.uint64() // the nonce
	version := d.byte()
	if d.err == nil && version > newestVersion {
		return nil, ErrNewer
	}
	generation := d.uint64()
	now := int64(d.uint64())
	spendBy := int64(d.uint64())
	n := d.byte()
	d.must(version >= plainVersion && n <= quota.MaxWindows && now >= 0 && spendBy >= now)
	if d.err != nil {
		return nil, d.err
	}
	r := balance.NewRecord(now, make([]limit.Window, n)...)
	r.Generation = generation
	for i := range r.Windows {
		d.window(&r.Windows[i], &r.Usages[i], now, spendBy)
	}
	r.HasHolders = versionHas(version, withHolders)
	if r.HasHolders {
		d.holders(r)
	}
	d.must(len(d.rest) == 0 && (versionHas(version, withBlock) || !hasBlock(r)))
	if d.err != nil {
		return nil, d.err
	}
	return r, nil
}

// appendWindow appends a window and its usage, to a value with that spendBy.
func appendWindow(b []byte, w *limit.Window, u *balance.Usage, spendBy int64) []byte {
	b = append(b, byte(w.Algorithm))
	b = appendNumber(b, w.PeriodNs)
	b = appendNumber(b, w.OffsetNs)
	b = append(b, w.Jitter, flag(w.Elastic, flagElastic)|flag(u.Slides, flagSlides)|flag(u.Cut, flagCut))
	switch w.Algorithm {
	case limit.SlidingWindowCounter:
		b = appendNumber(b, u.Used)
		b = appendNumber(b, u.Prev)
	case limit.SlidingWindowLog:
		b = appendLog(b, u.Log)
	case limit.TokenBucket:
		b = appendNumber(b, w.Limit)
		b = appendNumber(b, w.Burst)
		b = appendNumber(b, spendBy-u.AsOfNs)
		b = appendNumber(b, u.EndNs)
		b = binary.AppendVarint(b, u.Tokens.Hi)
		b = appendNumber(b, u.Tokens.Lo)
	default: // fixed windows, and a block
		b = appendNumber(b, u.Used)
		b = appendNumber(b, u.EndNs)
	}
	return b
}

// window reads a window and its usage, of a value with that time and spendBy.
func (d *decoder) window(w *limit.Window, u *balance.Usage, nowNs, spendBy int64) {
	w.Algorithm = limit.Algorithm(d.byte())
	w.PeriodNs = int64(d.number(maxInstant))
	w.OffsetNs = int64(d.number(maxInstant))
	w.Jitter = d.byte()
	flags := d.byte()
	w.Elastic = flags&flagElastic != 0
	u.Slides = flags&flagSlides != 0
	u.Cut = flags&flagCut != 0
	d.must(w.InRange() && flags <= flagElastic|flagSlides|flagCut)
	switch w.Algorithm {
	case limit.FixedWindow, limit.FixedWindowPerKey, limit.Calendar, limit.Block:
		u.Used = uint32(d.number(maxUnits))
		u.EndNs = int64(d.number(maxInstant))
	case limit.SlidingWindowCounter:
		u.Used = uint32(d.number(maxUnits))
		u.Prev = uint32(d.number(maxUnits))
	case limit.SlidingWindowLog:
		u.Log = d.log()
	case limit.TokenBucket:
		w.Limit = uint32(d.number(maxUnits))
		w.Burst = uint32(d.number(maxUnits))
		u.AsOfNs = spendBy - int64(d.number(uint64(spendBy-nowNs)))
		u.EndNs = int64(d.number(maxInstant))
		u.Tokens.Hi = d.signed()
		u.Tokens.Lo = d.number(any64)
		d.must(u.Tokens.Hi < 1<<31 && u.Tokens.Hi > -1<<31)
	default:
		d.must(false)
	}
}

// appendLog appends the units of each instant together.
func appendLog(b []byte, log []int64) []byte {
	instants := 0
	for i, t := range log {
		if i == 0 || t != log[i-1] {
			instants++
		}
	}
	b = appendNumber(b, uint32(instants))
	last := int64(0)
	for len(log) > 0 {
		at, n := log[0], 1
		for n < len(log) && log[n] == at {
			n++
		}
		b = appendNumber(b, at-last)
		b = appendNumber(b, uint32(n))
		last, log = at, log[n:]
	}
	return b
}

func (d *decoder) log() (log []int64) {
	at := int64(0)
	for instants := d.number(limit.MaxLog); instants > 0 && d.err == nil; instants-- {
		at += int64(d.number(uint64(maxInstant - at)))
		n := int(d.number(limit.MaxLog))
		d.must(n > 0 && len(log)+n <= limit.MaxLog)
		log = append(log, slices.Repeat([]int64{at}, n)...)
	}
	return log
}

// appendHolders appends what only a value with holders has.
func appendHolders(b []byte, r *balance.Record) []byte {
	for i := range r.Windows {
		b = appendNumber(b, r.Windows[i].Pays)
	}
	b = append(b, 0) // no release reads it
	b = appendNumber(b, uint32(len(r.Holders)))
	for i := range r.Holders {
		h := &r.Holders[i]
		b = binary.LittleEndian.AppendUint64(b, h.Worker)
		b = appendNumber(b, h.Since)
		b = appendNumber(b, h.Number)
		b = appendNumber(b, h.Charged)
		b = appendNumber(b, h.Held)
		b = appendNumber(b, r.NowNs-h.NotedNs)
		b = appendNumber(b, h.HoldNs)
	}
	return b
}

func (d *decoder) holders(r *balance.Record) {
	for i := range r.Windows {
		r.Windows[i].Pays = uint32(d.number(maxUnits))
	}
	d.number(uint64(maxInstant - r.NowNs)) // what releases before wrote
	for n := d.number(balance.MaxHolders); n > 0 && d.err == nil; n-- {
		h := balance.Holder{
			Worker:  d.uint64(),
			Since:   d.number(any64),
			Number:  d.number(any64),
			Charged: d.number(any64),
			Held:    uint32(d.number(maxUnits)),
			NotedNs: r.NowNs - int64(d.number(uint64(r.NowNs))),
			HoldNs:  int64(d.number(uint64(limit.MaxPeriodNs))),
		}
		r.Holders = append(r.Holders, h)
	}
}

const (
	any64      = 1<<64 - 1
	maxInstant = 1<<63 - 1
	maxUnits   = 1<<32 - 1
)

func flag(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// appendNumber appends a number that is not negative.
func appendNumber[T ~uint32 | ~uint64 | ~int64](b []byte, n T) []byte {
	return binary.AppendUvarint(b, uint64(n))
}

// decoder reads a value. The first error ends it; what is read then is 0.
type decoder struct {
	rest []byte
	err  error
}

// must ends the decoder if the value cannot be one.
func (d *decoder) must(holds bool) {
	if d.err == nil && !holds {
		d.err = ErrDamage
	}
}

// next is the next bytes, zeros if there are too few.
func (d *decoder) next(n int) (b [8]byte) {
	d.must(n <= len(d.rest))
	if d.err == nil {
		copy(b[:], d.rest[:n])
		d.rest = d.rest[n:]
	}
	return b
}

func (d *decoder) byte() byte { return d.next(1)[0] }

func (d *decoder) uint64() uint64 {
	b := d.next(8)
	return binary.LittleEndian.Uint64(b[:])
}

// number reads a number from 0 to most.
func (d *decoder) number(most uint64) uint64 {
	n, size := binary.Uvarint(d.rest)
	d.must(size > 0 && n <= most)
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) signed() int64 {
	n, size := binary.Varint(d.rest)
	d.must(size > 0)
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[size:]
	return n
}
