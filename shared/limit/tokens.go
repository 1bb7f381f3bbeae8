package limit

import (
	"math/bits"
)

// Tokens is an amount of tokens, counted in 1/PeriodNs of a token: n tokens are
// n·PeriodNs, and each nanosecond adds Limit. So nothing is ever rounded. It is a
// signed 128-bit integer that uses at most 96 bits; a negative amount is debt.
type Tokens struct {
	Hi int64
	Lo uint64
}

// maxHi bounds Tokens to 95 bits and a sign.
const maxHi = 1<<31 - 1

func tokens(n uint64, each int64) Tokens {
	hi, lo := bits.Mul64(n, uint64(each))
	return Tokens{int64(min(hi, maxHi)), lo}
}

func (a Tokens) add(b Tokens) Tokens {
	lo, carry := bits.Add64(a.Lo, b.Lo, 0)
	return Tokens{a.Hi + b.Hi + int64(carry), lo}.bounded()
}

func (a Tokens) sub(b Tokens) Tokens {
	lo, borrow := bits.Sub64(a.Lo, b.Lo, 0)
	return Tokens{a.Hi - b.Hi - int64(borrow), lo}.bounded()
}

func (a Tokens) bounded() Tokens {
	switch {
	case a.Hi > maxHi:
		return Tokens{maxHi, 1<<64 - 1}
	case a.Hi < -maxHi:
		return Tokens{-maxHi, 0}
	}
	return a
}

func (a Tokens) less(b Tokens) bool { return a.Hi < b.Hi || (a.Hi == b.Hi && a.Lo < b.Lo) }

func (a Tokens) positive() bool { return a.Hi > 0 || (a.Hi == 0 && a.Lo > 0) }

// ceilDiv is ⌈a/b⌉ for a ≥ 0, b > 0, at most maxWait.
func (a Tokens) ceilDiv(b uint64) int64 {
	lo, carry := bits.Add64(a.Lo, b-1, 0)
	hi := uint64(a.Hi) + carry
	if hi >= b {
		return maxWait
	}
	q, _ := bits.Div64(hi, lo, b)
	return int64(min(q, uint64(maxWait)))
}

const (
	maxWait    int64 = MaxFillNs
	maxInstant int64 = 1<<63 - 1 - 2*stampMask // leaves room for a stamp
)

// after is the instant wait nanoseconds after now, at most maxInstant.
func after(now, wait int64) int64 { return now + max(min(wait, maxInstant-now), 0) }

// notFull stands in the EndNs of a bucket that lacks tokens until it is known when the bucket is
// full: 0 would say that it is full.
const notFull = 1

// full is the level of a full bucket.
func (w *Window) full() Tokens { return tokens(uint64(w.Burst), w.PeriodNs) }

// level returns the tokens in the bucket of u.
func (w *Window) level(u *Usage) Tokens {
	if u.EndNs == 0 {
		return w.full()
	}
	return u.Tokens
}

// refill adds to u, written at last, the tokens that the bucket has gained since.
func (w *Window) refill(u *Usage, last, now int64) {
	switch {
	case u.EndNs == 0:
		*u = Usage{}
		return
	case !w.knowsSize():
		return
	}
	level := u.Tokens.add(tokens(uint64(now-last), int64(w.Limit)))
	if full := w.full(); !level.less(full) {
		*u = Usage{}
		return
	}
	u.Tokens = level
}

// checkTokens: the hit passes once the bucket holds cost tokens.
func (w *Window) checkTokens(u *Usage, now int64, cost uint32) int64 {
	need, level := tokens(uint64(cost), w.PeriodNs), w.level(u)
	if !level.less(need) {
		return now
	}
	return after(now, need.sub(level).ceilDiv(uint64(w.Limit)))
}

// takeTokens takes cost tokens out of u, into debt if need be.
func (w *Window) takeTokens(u *Usage, now int64, cost uint32) {
	if w.knowsSize() {
		*u = w.withLevel(w.level(u).sub(tokens(uint64(cost), w.PeriodNs)), now)
	}
}

// withLevel is the usage of a bucket that holds level at now.
func (w *Window) withLevel(level Tokens, now int64) Usage {
	if !level.less(w.full()) {
		return Usage{}
	}
	u := Usage{Tokens: level, EndNs: notFull}
	if w.Limit == 0 { // never full, but a key with other limits that starts from it must not wait forever
		u.EndNs = w.stamped(after(now, w.PeriodNs))
	} else {
		u.EndNs = w.stamped(w.fullAt(&u, now))
	}
	return u
}

// fullAt is when the bucket of u, written at last, is full.
func (w *Window) fullAt(u *Usage, last int64) int64 {
	if u.EndNs == 0 {
		return 0
	}
	lacks := w.full().sub(u.Tokens)
	switch {
	case !lacks.positive():
		return last
	case w.Limit == 0:
		return after(last, maxWait)
	}
	return after(last, lacks.ceilDiv(uint64(w.Limit)))
}

// latestFull is when the bucket of u, written at last, is full: by w's limits or
// by those it was written with, whichever is later.
func (w *Window) latestFull(u *Usage, last int64) int64 {
	switch {
	case !w.knowsSize() || w.Limit == 0:
		return u.EndNs
	case w.isOnlyBound(u.EndNs, last):
		return w.fullAt(u, last)
	}
	return max(u.EndNs, w.fullAt(u, last))
}

// knowsSize reports whether w says how many tokens a full bucket has. A configuration without
// this window still finds it in records that another one wrote. It has no limits for it then, and
// a Burst of 0 stands for a size that it does not know.
func (w *Window) knowsSize() bool { return w.Burst > 0 }

// isOnlyBound reports whether the instant at which a bucket is full is only a bound: the bucket was
// charged by a configuration that does not know its size, see ChargeByRule. The bound may be years
// away. A configuration that knows the size does not wait for it: it reads the bucket as empty
// when it was last written.
func (w *Window) isOnlyBound(full, last int64) bool {
	return w.FillNs < maxWait/2 && full > after(last, maxWait/2)
}

// missing is how many tokens the bucket of u lacks, rounded up.
func (w *Window) missing(u *Usage) uint32 {
	lacks := w.full().sub(w.level(u))
	if !lacks.positive() {
		return 0
	}
	return uint32(min(lacks.ceilDiv(uint64(w.PeriodNs)), 1<<32-1))
}

// refundTokens puts back what was taken from u at the instant at, less what the
// bucket has gained since.
func (w *Window) refundTokens(u *Usage, at, now int64, cost uint32) {
	charge := tokens(uint64(cost), w.PeriodNs).sub(tokens(uint64(max(now-at, 0)), int64(w.Limit)))
	if charge.positive() && u.EndNs != 0 && w.knowsSize() {
		*u = w.withLevel(u.Tokens.add(charge), now)
	}
}

// Fill is how many nanoseconds an empty TokenBucket takes to be full. It is 0 for
// a bucket that passes no hit and for one that passes every hit.
func (w *Window) Fill() int64 {
	if w.Algorithm != TokenBucket || w.Limit == 0 || w.Unlimited {
		return 0
	}
	return w.full().ceilDiv(uint64(w.Limit))
}
