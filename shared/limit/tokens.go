package limit

import "math/bits"

// Tokens is an amount of tokens in units of a token's nanosecond: n tokens of a
// bucket that gains requests of them in a period are n·PeriodNs, and a
// nanosecond adds requests. Nothing is ever rounded. It is a signed 128-bit
// integer of at most 96 bits; below zero lies debt.
type Tokens struct {
	Hi int64
	Lo uint64
}

// maxHi bounds what is stored to 95 bits and a sign.
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

// ceilDiv is ⌈a/b⌉ for a ≥ 0, b > 0, at most far.
func (a Tokens) ceilDiv(b uint64) int64 {
	lo, carry := bits.Add64(a.Lo, b-1, 0)
	hi := uint64(a.Hi) + carry
	if hi >= b {
		return far
	}
	q, _ := bits.Div64(hi, lo, b)
	return int64(min(q, uint64(far)))
}

// far is a wait longer than any clock counts, and end the last instant, short of
// what int64 has by a stamp.
const (
	far int64 = MaxFillNs
	end int64 = 1<<63 - 1 - 2*stampMask
)

// after is the instant that is so long after now, at most end.
func after(now, wait int64) int64 { return now + max(min(wait, end-now), 0) }

// full is a bucket with all its tokens.
func (w *Window) full() Tokens { return tokens(uint64(w.Burst), w.PeriodNs) }

// level returns what the bucket of u holds.
func (w *Window) level(u *Usage) Tokens {
	if u.EndNs == 0 {
		return w.full()
	}
	return u.Tokens
}

// refill adds to u, written at last, what the bucket has gained since.
func (w *Window) refill(u *Usage, last, now int64) {
	switch {
	case u.EndNs == 0:
		*u = Usage{}
		return
	case w.Burst == 0: // whoever asks does not know the bucket's size
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

// take takes cost tokens out of u, into debt if need be.
func (w *Window) take(u *Usage, now int64, cost uint32) {
	if w.Burst != 0 {
		*u = w.holding(w.level(u).sub(tokens(uint64(cost), w.PeriodNs)), now)
	}
}

// holding is the usage of a bucket with that level.
func (w *Window) holding(level Tokens, now int64) Usage {
	if !level.less(w.full()) {
		return Usage{}
	}
	u := Usage{Tokens: level, EndNs: 1}
	if w.Limit == 0 { // never full, but others must not wait for that: see Start
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
		return after(last, far)
	}
	return after(last, lacks.ceilDiv(uint64(w.Limit)))
}

// fullBy is when the bucket of u, written at last, is full, by w and by whoever
// wrote it.
func (w *Window) fullBy(u *Usage, last int64) int64 {
	if w.Burst == 0 || w.Limit == 0 { // who asks does not know the bucket's size, or fills none
		return u.EndNs
	}
	return max(u.EndNs, w.fullAt(u, last))
}

// missing is how many whole tokens the bucket of u lacks, counting one begun
// as missing.
func (w *Window) missing(u *Usage) uint32 {
	lacks := w.full().sub(w.level(u))
	if !lacks.positive() {
		return 0
	}
	return uint32(min(lacks.ceilDiv(uint64(w.PeriodNs)), 1<<32-1))
}

// refundTokens puts back into u what is not yet refilled of a charge made at the
// instant at.
func (w *Window) refundTokens(u *Usage, at, now int64, cost uint32) {
	charge := tokens(uint64(cost), w.PeriodNs).sub(tokens(uint64(max(now-at, 0)), int64(w.Limit)))
	if charge.positive() && u.EndNs != 0 && w.Burst != 0 {
		*u = w.holding(u.Tokens.add(charge), now)
	}
}
