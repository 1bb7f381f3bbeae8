package automaton

import (
	"encoding/binary"
	"math/bits"
	"regexp/syntax"
	"slices"
)

// builder makes an automaton from a program by the subset construction: a state is
// a set of instructions, and the table has a row for each state that some text
// leads to. See Aho, Lam, Sethi, Ullman, "Compilers", second edition, section 3.7.1.
type builder struct {
	prog     *syntax.Prog
	setWords int // length of a set
	classes  []class
	rowWidth int // entries in a row: one for each class and one for the end of the text
	workLeft int // work left to spend

	hasAssertions bool  // the program has assertions, such as \b
	assertions    set   // instructions that are assertions
	closures      []set // by instruction: its closure, nil = not computed yet
	match         uint32

	sets        set      // the sets of all states, one after the other
	kindsBefore []kind   // by state: kind of the character before the rest of the text
	index       []uint32 // a hash table of states: 1 + the state's number, 0 = free
	key         []byte
	table       []uint16
}

// build returns nil if the table has too many entries or takes too much work.
func (b *builder) build(prog *syntax.Prog) *Automaton {
	b.prog, b.setWords = prog, (len(prog.Inst)+63)/64
	b.assertions, b.closures = b.newSet(), make([]set, len(prog.Inst))
	for i := range prog.Inst {
		switch prog.Inst[i].Op {
		case syntax.InstEmptyWidth:
			b.assertions.add(uint32(i))
			b.hasAssertions = true
		case syntax.InstMatch:
			b.match = uint32(i)
		default:
		}
	}
	a := &Automaton{}
	b.classify(a)
	if b.workLeft < 0 {
		return nil
	}
	b.rowWidth = len(b.classes) + 1
	b.stateOf(b.newSet(), kindOther)
	b.stateOf(b.closure(uint32(prog.Start)), kindNone)
	next := b.newSet()
	for row := 0; row < b.count(); row++ {
		full := b.passed(row)
		for c := range b.classes {
			if b.count()*b.rowWidth > maxEntries || b.workLeft < 0 {
				return nil
			}
			class := &b.classes[c]
			clear(next)
			b.step(next, full[class.kind], class.takes)
			b.table = append(b.table, uint16(b.stateOf(next, class.kind)*b.rowWidth))
		}
		end := uint16(0)
		if full[kindNone].has(b.match) {
			end = 1
		}
		b.table = append(b.table, end)
	}
	a.next, a.rowWidth = exact(b.table), b.rowWidth
	a.rangeStarts, a.rangeClasses = exact(a.rangeStarts), exact(a.rangeClasses)
	return a
}

// exact returns a copy that takes as much memory as Automaton.Bytes counts. What append has made may take more, and in
// the filter it would be searched for pointers.
func exact[T uint16 | rune](list []T) []T {
	return append(make([]T, 0, len(list)), list...)
}

// stateOf returns the number of the state with that set, which it adds if there is
// none. Only assertions depend on the character before the rest of the text.
func (b *builder) stateOf(s set, before kind) int {
	if !b.hasAssertions || !s.meets(b.assertions) {
		before = kindOther
	}
	b.workLeft -= 32 + 8*b.setWords
	if 2*b.count() >= len(b.index) {
		b.rehash()
	}
	at := b.slot(s, before)
	for ; b.index[at] != 0; at = (at + 1) % len(b.index) {
		n := int(b.index[at]) - 1 // fits: it is the number of a state
		if b.kindsBefore[n] == before && slices.Equal(b.setOf(n), s) {
			return n
		}
	}
	b.workLeft -= 256
	b.sets, b.kindsBefore = append(b.sets, s...), append(b.kindsBefore, before)
	b.index[at] = uint32(b.count())
	return b.count() - 1
}

func (b *builder) count() int { return len(b.kindsBefore) }

// setOf returns the set of state n.
func (b *builder) setOf(n int) set { return b.sets[n*b.setWords : (n+1)*b.setWords] }

// slot returns the index in b.index at which the search for a state begins.
func (b *builder) slot(s set, before kind) int {
	h := uint64(before)
	for _, w := range s {
		h = (h ^ w) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return int(h % uint64(len(b.index)))
}

// rehash makes b.index four times as long.
func (b *builder) rehash() {
	b.index = make([]uint32, max(64, 4*len(b.index)))
	for n := range b.count() {
		at := b.slot(b.setOf(n), b.kindsBefore[n])
		for b.index[at] != 0 {
			at = (at + 1) % len(b.index)
		}
		b.index[at] = uint32(n + 1)
	}
}

// step adds to next where the instructions of from lead that take the class.
func (b *builder) step(next, from, takes set) {
	b.workLeft -= 2 * b.setWords
	for w := range from {
		for m := from[w] & takes[w]; m != 0; m &= m - 1 {
			i := uint32(w*64 + bits.TrailingZeros64(m))
			next.join(b.closure(b.prog.Inst[i].Out))
			b.workLeft -= b.setWords
		}
	}
}

// closure returns the instructions that from leads to without taking a character or
// passing an assertion: those that take a character, assertions, and the match.
func (b *builder) closure(from uint32) set {
	if b.closures[from] != nil {
		return b.closures[from]
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
		b.workLeft -= 8
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
	b.closures[from] = s
	return s
}

// passed returns, for each kind of next character, the state's set and what its
// assertions lead to if they hold before that character.
func (b *builder) passed(row int) (full [kinds]set) {
	s := slices.Clone(b.setOf(row)) // b.sets may be reallocated
	for after := range full {
		full[after] = s
		if b.hasAssertions && s.meets(b.assertions) {
			full[after] = b.pass(s, syntax.EmptyOpContext(b.kindsBefore[row].like(), kind(after).like()))
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
			for m := full[w] & b.assertions[w] &^ done[w]; m != 0; m &= m - 1 {
				i := uint32(w*64 + bits.TrailingZeros64(m))
				done.add(i)
				if inst := &b.prog.Inst[i]; syntax.EmptyOp(inst.Arg)&^holds == 0 {
					full.join(b.closure(inst.Out))
					more = true
				}
				b.workLeft -= b.setWords
			}
		}
		b.workLeft -= b.setWords
	}
	return full
}

func (b *builder) newSet() set { return make(set, b.setWords) }

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
