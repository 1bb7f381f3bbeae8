package quotaservice

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
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
//	0         until when nothing was granted, in releases before
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
	version = 1 // a release reads a version before the first one writes it
	holding = 2 // the version of values with rows

	flagElas, flagSlides, flagCut = 1, 2, 4

	any64      = 1<<64 - 1
	maxInstant = 1<<63 - 1
	maxUnits   = 1<<32 - 1
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
	startNs    int64  // until when the store is starting, as far as is known; not in the value
	quota.State
}

// append appends the value's bytes to b.
func (r *record) append(b []byte, nonce uint64) []byte {
	c := coder{b: b}
	r.fields(&c, nonce)
	return c.b
}

// parse reads a value.
func parse(b []byte) (*record, error) {
	c, r := coder{b: b, reads: true}, new(record)
	r.fields(&c, 0)
	if c.must(len(c.b) == 0); c.err != nil {
		return nil, c.err
	}
	return r, nil
}

func (r *record) fields(c *coder, nonce uint64) {
	v, n, stamp := byte(version), byte(len(r.Windows)), r.NowNs
	if r.Holders != nil {
		v = holding
	}
	for i := range r.Windows {
		stamp = max(stamp, r.Stamp(i))
	}
	now := r.NowNs
	fixed64(c, &nonce)
	if c.byte(&v); c.err == nil && v > holding {
		c.err = errNewer
	}
	fixed64(c, &r.generation)
	fixed64(c, &now)
	fixed64(c, &stamp)
	c.byte(&n)
	if c.must(v >= version && n <= quota.MaxWindows && now >= 0 && stamp >= now); c.err != nil {
		return
	}
	if c.reads {
		r.State = quota.NewState(now, make([]limit.Window, n))
	}
	for i := range r.Windows {
		before := stamp - r.Stamp(i)
		c.window(&r.Windows[i], &r.Usages[i], &before, stamp-now)
		if c.reads && r.Windows[i].Algorithm == limit.TokenBucket {
			r.SetStamp(i, stamp-before)
		}
	}
	if v == holding {
		c.rows(r)
	}
}

// coder goes over what a value consists of, and appends it or reads it. It writes to nothing
// that it appends: a record has the windows of definitions.
type coder struct {
	b     []byte // what was appended, or is to be read
	reads bool
	err   error
}

// must is for what is read.
func (c *coder) must(holds bool) {
	if c.err == nil && !holds {
		c.err = errDamage
	}
}

// next is the next bytes that are read, zeros where there are too few.
func (c *coder) next(n int) (b [8]byte) {
	if c.must(n <= len(c.b)); c.err == nil {
		copy(b[:], c.b[:n])
		c.b = c.b[n:]
	}
	return b
}

func (c *coder) byte(v *byte) {
	if c.reads {
		*v = c.next(1)[0]
	} else {
		c.b = append(c.b, *v)
	}
}

func fixed64[T ~uint64 | ~int64](c *coder, v *T) {
	if b := [8]byte{}; c.reads {
		b = c.next(len(b))
		*v = T(binary.LittleEndian.Uint64(b[:]))
	} else {
		c.b = binary.LittleEndian.AppendUint64(c.b, uint64(*v))
	}
}

// number goes over a number from 0 to bound.
func number[T ~int | ~uint32 | ~uint64 | ~int64](c *coder, v *T, bound uint64) {
	if !c.reads {
		c.b = binary.AppendUvarint(c.b, uint64(*v))
		return
	}
	n, size := binary.Uvarint(c.b)
	if c.must(size > 0 && n <= bound); c.err != nil {
		n, size = 0, 0
	}
	*v, c.b = T(n), c.b[size:]
}

func (c *coder) signed(v *int64) {
	u := uint64(*v)<<1 ^ uint64(*v>>63)
	if number(c, &u, any64); c.reads {
		*v = int64(u>>1) ^ -int64(u&1)
	}
}

// window goes over a window and its usage. A bucket's stamp is before the value's, at most latest.
func (c *coder) window(w *limit.Window, u *limit.Usage, before *int64, latest int64) {
	c.byte((*byte)(&w.Algorithm))
	number(c, &w.PeriodNs, maxInstant)
	number(c, &w.OffsetNs, maxInstant)
	c.byte(&w.Jitter)
	flags := flag(w.Elastic, flagElas) | flag(u.Slides, flagSlides) | flag(u.Cut, flagCut)
	c.byte(&flags)
	if c.reads {
		w.Elastic, u.Slides, u.Cut = flags&flagElas != 0, flags&flagSlides != 0, flags&flagCut != 0
	}
	c.must(w.InRange() && flags <= flagElas|flagSlides|flagCut)
	switch w.Algorithm {
	case limit.FixedWindow, limit.FixedWindowPerKey, limit.Calendar:
		number(c, &u.Used, maxUnits)
		number(c, &u.EndNs, maxInstant)
	case limit.SlidingWindowCounter:
		number(c, &u.Used, maxUnits)
		number(c, &u.Prev, maxUnits)
	case limit.SlidingWindowLog:
		c.log(u)
	case limit.TokenBucket:
		number(c, &w.Limit, maxUnits)
		number(c, &w.Burst, maxUnits)
		number(c, before, uint64(latest))
		number(c, &u.EndNs, maxInstant)
		c.signed(&u.Tokens.Hi)
		number(c, &u.Tokens.Lo, any64)
		c.must(u.Tokens.Hi < 1<<31 && u.Tokens.Hi > -1<<31)
	default:
		c.must(false)
	}
}

func flag(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// log goes over the units of each instant together.
func (c *coder) log(u *limit.Usage) {
	instants, last := 0, int64(0)
	for i, t := range u.Log {
		if i == 0 || t != u.Log[i-1] {
			instants++
		}
	}
	number(c, &instants, limit.MaxLog)
	for at := 0; instants > 0 && c.err == nil; instants-- {
		gap, n := int64(0), 0
		if !c.reads {
			gap = u.Log[at] - last
			for at < len(u.Log) && u.Log[at] == last+gap {
				at, n = at+1, n+1
			}
		}
		number(c, &gap, uint64(maxInstant-last))
		number(c, &n, limit.MaxLog)
		last += gap
		if c.reads {
			c.must(n > 0 && len(u.Log)+n <= limit.MaxLog)
			u.Log = append(u.Log, slices.Repeat([]int64{last}, n)...)
		}
	}
}

// rows goes over what only a value with rows has.
func (c *coder) rows(r *record) {
	if c.reads {
		r.Holders = &quota.Holders{}
	}
	for i := range r.Windows {
		number(c, &r.Windows[i].Pays, maxUnits)
	}
	quiet, n := int64(0), len(r.Holders.List) // how long releases before have waited for a store to start
	number(c, &quiet, uint64(maxInstant-r.NowNs))
	number(c, &n, quota.MaxHolders)
	for i := 0; i < n && c.err == nil; i++ {
		if c.reads {
			r.Holders.List = append(r.Holders.List, quota.Holder{NotedNs: r.NowNs})
		}
		row := &r.Holders.List[i]
		age := r.NowNs - row.NotedNs
		fixed64(c, &row.Worker)
		number(c, &row.Since, any64)
		number(c, &row.Number, any64)
		number(c, &row.Charged, any64)
		number(c, &row.Held, maxUnits)
		number(c, &age, uint64(r.NowNs))
		number(c, &row.HoldNs, uint64(limit.MaxPeriodNs))
		if c.reads {
			row.NotedNs = r.NowNs - age
		}
	}
}
