package automaton

import (
	"math/bits"
	"regexp/syntax"
	"slices"
)

// builder makes an automaton of a program: its states are sets of instructions,
// and it has a row for each set that some text leads to.
type builder struct {
	prog    *syntax.Prog
	words   int // of a set
	classes []class
	width   int // of a row: an entry for each class and one for the end of the text
	work    int // that may still be spent

	asserting bool  // some instruction is an assertion, such as \b
	asserts   set   // those that are
	leads     []set // where each instruction leads to, see closure; nil = not known yet
	match     uint32

	states map[string]int // the numbers of the states, by their keys
	sets   []set          // by number
	before []kind         // by number: what stands before the text that is left
	key    []byte
	table  []uint16
}

// build returns nil where the table has too many entries, or takes more work
// than there is.
func (b *builder) build(prog *syntax.Prog) *Automaton {
	b.prog, b.words = prog, (len(prog.Inst)+63)/64
	b.asserts, b.leads = b.newSet(), make([]set, len(prog.Inst))
	b.states = map[string]int{}
	for i := range prog.Inst {
		switch prog.Inst[i].Op {
		case syntax.InstEmptyWidth:
			b.asserts.add(uint32(i))
			b.asserting = true
		case syntax.InstMatch:
			b.match = uint32(i)
		default: // found by following the others
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
	for row := 0; row < len(b.sets); row++ {
		full := b.passed(row)
		for c := range b.classes {
			if len(b.sets)*b.width > maxEntries || b.work < 0 {
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
	return a
}

// state is the number of a set, a new one where it has none. What stands before
// the text that is left matters only to assertions.
func (b *builder) state(s set, before kind) int {
	if !b.asserting || !s.meets(b.asserts) {
		before = other
	}
	b.key = append(s.appendTo(b.key[:0]), byte(before))
	b.work -= 32 + 8*b.words
	n, found := b.states[string(b.key)]
	if !found {
		b.work -= 256
		n = len(b.sets)
		b.states[string(b.key)] = n
		b.sets, b.before = append(b.sets, slices.Clone(s)), append(b.before, before)
	}
	return n
}

// step adds to next where those instructions of a set lead that take a class.
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

// closure is where an instruction leads to without taking a character or
// passing an assertion: to instructions that take one, that are one, or the end.
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

// passed is the set of a state with where its assertions lead that hold before
// each kind of character.
func (b *builder) passed(row int) (full [kinds]set) {
	s := b.sets[row]
	for after := range full {
		full[after] = s
		if b.asserting && s.meets(b.asserts) {
			full[after] = b.pass(s, syntax.EmptyOpContext(b.before[row].like(), kind(after).like()))
		}
	}
	return full
}

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
