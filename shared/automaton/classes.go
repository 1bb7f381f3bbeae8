package automaton

import (
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// kind is what assertions such as \b and $ need to know of the characters around
// them.
type kind uint8

const (
	kindOther kind = iota
	kindWord       // \w, ASCII only
	kindNewline
	kindNone // no character: before or after the text
	kinds
)

// like returns a character of the kind for syntax.EmptyOpContext.
func (k kind) like() rune {
	return [kinds]rune{kindOther: ' ', kindWord: 'a', kindNewline: '\n', kindNone: -1}[k]
}

func kindOf(r rune) kind {
	switch {
	case r == '\n':
		return kindNewline
	case syntax.IsWordChar(r):
		return kindWord
	}
	return kindOther
}

// class is a set of characters that all instructions treat alike.
type class struct {
	kind  kind
	takes set // the instructions that take them
}

// leaf is a character or character class of the expression, with the instructions
// that take it: one for each copy that counted repeats have made.
type leaf struct {
	ranges []rune // pairs, sorted; takes drops those before its last argument
	copies []uint32
}

// takes reports whether the leaf takes r. Calls must be in ascending order of r.
func (l *leaf) takes(r rune) bool {
	for len(l.ranges) > 0 && l.ranges[1] < r {
		l.ranges = l.ranges[2:]
	}
	return len(l.ranges) > 0 && l.ranges[0] <= r
}

// classify finds the classes of all characters. Each instruction takes all
// characters between two edges or none of them.
func (b *builder) classify(a *Automaton) {
	leaves := b.leaves()
	edges := b.edges(leaves)
	known := map[string]uint16{}
	members := make(set, (len(leaves)+63)/64) // the leaves that take the characters from an edge on
	for at, r := range edges[:len(edges)-1] {
		b.workLeft -= 4*len(leaves) + 64
		if b.workLeft < 0 {
			return
		}
		clear(members)
		for i := range leaves {
			if leaves[i].takes(r) {
				members.add(uint32(i))
			}
		}
		k := kindOther
		if b.hasAssertions {
			k = kindOf(r)
		}
		b.key = append(members.appendTo(b.key[:0]), byte(k))
		n, found := known[string(b.key)]
		if !found {
			n = uint16(len(b.classes))
			known[string(b.key)] = n
			b.classes = append(b.classes, b.newClass(leaves, members, k))
		}
		a.assign(r, edges[at+1], n)
	}
}

// edges returns the characters at which the class may change, sorted. The last edge
// is one past the largest character.
func (b *builder) edges(leaves []leaf) []rune {
	edges := []rune{0, utf8.RuneSelf, unicode.MaxRune + 1}
	if b.hasAssertions {
		edges = append(edges, '\n', '\n'+1, '0', '9'+1, 'A', 'Z'+1, '_', '_'+1, 'a', 'z'+1)
	}
	for _, l := range leaves {
		for i := 0; i < len(l.ranges); i += 2 {
			edges = append(edges, l.ranges[i], l.ranges[i+1]+1)
		}
	}
	b.workLeft -= 64 * len(edges)
	slices.Sort(edges)
	return slices.Compact(edges)
}

// leaves returns the leaves of the program. Copies of a leaf share the memory of
// their characters, by which they are recognized.
func (b *builder) leaves() []leaf {
	var leaves []leaf
	known := map[*rune]int{}
	for i := range b.prog.Inst {
		inst := &b.prog.Inst[i]
		switch inst.Op {
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		default:
			continue
		}
		if len(inst.Rune) == 0 {
			continue // takes no character
		}
		n, found := known[&inst.Rune[0]]
		if !found {
			n = len(leaves)
			known[&inst.Rune[0]] = n
			leaves = append(leaves, leaf{ranges: rangesOf(inst)})
		}
		leaves[n].copies = append(leaves[n].copies, uint32(i))
	}
	return leaves
}

func rangesOf(inst *syntax.Inst) []rune {
	if len(inst.Rune) > 1 {
		return inst.Rune
	}
	orbit := []rune{inst.Rune[0]}
	if syntax.Flags(inst.Arg)&syntax.FoldCase != 0 {
		for r := unicode.SimpleFold(orbit[0]); r != orbit[0]; r = unicode.SimpleFold(r) {
			orbit = append(orbit, r)
		}
	}
	slices.Sort(orbit)
	var ranges []rune
	for _, r := range orbit {
		ranges = append(ranges, r, r)
	}
	return ranges
}

func (b *builder) newClass(leaves []leaf, members set, k kind) class {
	c := class{kind: k, takes: b.newSet()}
	for i := range leaves {
		if members.has(uint32(i)) {
			for _, inst := range leaves[i].copies {
				c.takes.add(inst)
			}
			b.workLeft -= 2 * len(leaves[i].copies)
		}
	}
	b.workLeft -= 8 * b.setWords
	return c
}

// assign puts the characters from r up to end into a class.
func (a *Automaton) assign(r, end rune, class uint16) {
	if r < utf8.RuneSelf {
		for ; r < end; r++ {
			a.ascii[r] = class
		}
		return
	}
	if n := len(a.rangeClasses); n == 0 || a.rangeClasses[n-1] != class {
		a.rangeStarts, a.rangeClasses = append(a.rangeStarts, r), append(a.rangeClasses, class)
	}
}
