package automaton

import (
	"encoding/binary"
	"math/bits"
	"regexp/syntax"
	"slices"
)

// builder makes an automaton from a program by the subset construction: a state is
// a set of instructions, and the table has a row for each state that some text
// leads to. See Aho, Lam, Sethi, Ullman, "Compilers", second
// edition, section 3.7.1.
type builder struct {
	prog    *syntax.Prog
	words   int // length of a set
	classes []class
	width   int // entries in a row: one for each class and one for the end of the text
	work    int // work left to spend

	asserting bool  // the program has assertions, such as \b
	asserts   set   // instructions that are assertions
	leads     []set // by instruction: its closure, nil = not computed yet
	match     uint32

	sets   set      // the sets of all states, one after the other
	before []kind   // by state: kind of the character before the rest of the text
	slots  []uint32 // a hash table of states: 1 + the state's number, 0 = free
	key    []byte
	table  []uint16
}

// build returns nil if the table has too many entries or takes too much work.
func (b *builder) build(prog *syntax.Prog) *Automaton {
	b.prog, b.words = prog, (len(prog.Inst)+63)/64
	b.asserts, b.leads = b.newSet(), make([]set, len(prog.Inst))
	for i := range prog.Inst {
		switch prog.Inst[i].Op {
		case syntax.InstEmptyWidth:
			b.asserts.add(uint32(i))
			b.asserting = true
		case syntax.InstMatch:
			b.match = uint32(i)
		default:
		}
	}
	a := &Automaton{}
	b.classify(a)
	if b.work < 0 {
		return nil
	}
	b.width = len(b.classes) + 1
	b.state(b.newSet(), other)
	b.state(b.closure(uint32(prog.Start)), none)
	next := b.newSet()
	for row := 0; row < b.count(); row++ {
		full := b.passed(row)
		for c := range b.classes {
			if b.count()*b.width > maxEntries || b.work < 0 {
				return nil
			}
			class := &b.classes[c]
			clear(next)
			b.step(next, full[class.kind], class.takes)
			b.table = append(b.table, uint16(b.state(next, class.kind)*b.width))
		}
		end := uint16(0)
		if full[none].has(b.match) {
			end = 1
		}
		b.table = append(b.table, end)
	}
	a.next, a.width = slices.Clip(b.table), b.width
	a.starts = append(make([]rune, 0, len(a.starts)), a.starts...) // append's own memory would be searched for pointers
	return a
}

// state returns the number of the state with that set, which it adds if there is
// none. Only assertions depend on the character before the rest of the text.
func (b *builder) state(s set, before kind) int {
	if !b.asserting || !s.meets(b.asserts) {
		before = other
	}
	b.work -= 32 + 8*b.words
	if 2*b.count() >= len(b.slots) {
		b.rehash()
	}
	at := b.slot(s, before)
	for ; b.slots[at] != 0; at = (at + 1) % len(b.slots) {
		n := int(b.slots[at]) - 1 // fits: it is the number of a state
		if b.before[n] == before && slices.Equal(b.set(n), s) {
			return n
		}
	}
	b.work -= 256
	b.sets, b.before = append(b.sets, s...), append(b.before, before)
	b.slots[at] = uint32(b.count())
	return b.count() - 1
}

func (b *builder) count() int { return len(b.before) }

// set returns the set of state n.
func (b *builder) set(n int) set { return b.sets[n*b.words : (n+1)*b.words] }

// slot returns the index in slots at which the search for a state begins.
func (b *builder) slot(s set, before kind) int {
	h := uint64(before)
	for _, w := range s {
		h = (h ^ w) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return int(h % uint64(len(b.slots)))
}

// rehash makes slots four times as long.
func (b *builder) rehash() {
	b.slots = make([]uint32, max(64, 4*len(b.slots)))
	for n := range b.count() {
		at := b.slot(b.set(n), b.before[n])
		for b.slots[at] != 0 {
			at = (at + 1) % len(b.slots)
		}
		b.slots[at] = uint32(n + 1)
	}
}

// step adds to next where the instructions of from lead that take the class.
func (b *builder) step(next, from, takes set) {
	b.work -= 2 * b.words
	for w := range from {
		for m := from[w] & takes[w]; m != 0; m &= m - 1 {
			i := uint32(w*64 + bits.TrailingZeros64(m))
			next.join(b.closure(b.prog.Inst[i].Out))
			b.work -= b.words
		}
	}
}

// closure returns the instructions that from leads to without taking a character or
// passing an assertion: those that take a character, assertions, and the match.
func (b *builder) closure(from uint32) set {
	if b.leads[from] != nil {
		return b.leads[from]
	}
	s, seen := b.newSet(), b.newSet()
	stack := []uint32{from}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen.has(i) {
			continue
		}
		seen.add(i)
		b.work -= 8
		switch inst := &b.prog.Inst[i]; inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			stack = append(stack, inst.Arg, inst.Out)
		case syntax.InstCapture, syntax.InstNop:
			stack = append(stack, inst.Out)
		case syntax.InstFail:
		default:
			s.add(i)
		}
	}
	b.leads[from] = s
	return s
}

// passed returns, for each kind of next character, the state's set and what its
// assertions lead to if they hold before that character.
func (b *builder) passed(row int) (full [kinds]set) {
	s := slices.Clone(b.set(row)) // b.sets may be reallocated
	for after := range full {
		full[after] = s
		if b.asserting && s.meets(b.asserts) {
			full[after] = b.pass(s, syntax.EmptyOpContext(b.before[row].like(), kind(after).like()))
		}
	}
	return full
}

// pass returns s and what its assertions lead to if the conditions in holds hold.
func (b *builder) pass(s set, holds syntax.EmptyOp) set {
	full := slices.Clone(s)
	done := b.newSet()
	for more := true; more; {
		more = false
		for w := range full {
			for m := full[w] & b.asserts[w] &^ done[w]; m != 0; m &= m - 1 {
				i := uint32(w*64 + bits.TrailingZeros64(m))
				done.add(i)
				if inst := &b.prog.Inst[i]; syntax.EmptyOp(inst.Arg)&^holds == 0 {
					full.join(b.closure(inst.Out))
					more = true
				}
				b.work -= b.words
			}
		}
		b.work -= b.words
	}
	return full
}

func (b *builder) newSet() set { return make(set, b.words) }

// set is a set of small numbers, one bit for each.
type set []uint64

func (s set) add(i uint32) { s[i/64] |= 1 << (i % 64) }

func (s set) has(i uint32) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s set) join(other set) {
	for w := range s {
		s[w] |= other[w]
	}
}

func (s set) meets(other set) bool {
	for w := range s {
		if s[w]&other[w] != 0 {
			return true
		}
	}
	return false
}

// appendTo appends the set as bytes.
func (s set) appendTo(b []byte) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}
