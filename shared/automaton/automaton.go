// Package automaton turns a regular expression into a table and matches texts
// against it, one look-up a byte: exactly what Go's regexp says of a match in
// full, without its memory and without its worst case.
//
// Its invariant: what an expression may cost is bounded before it is spent, and
// Match neither allocates nor goes back. It must build for wasm and import
// nothing but the parser of expressions and small standard packages: no fmt, no
// regexp.
package automaton

import "unicode/utf8"

// MaxValueBytes is the longest text that an expression should be run on: in the
// compiled filter that takes well below a millisecond. What a longer one means
// is for the caller to say.
const MaxValueBytes = 8 << 10

// Automaton is a compiled expression. It is safe for concurrent use.
type Automaton struct {
	ascii  [utf8.RuneSelf]uint16 // the class of each ASCII character
	starts []rune                // where ranges of other characters begin, sorted; the first is RuneSelf
	of     []uint16              // the class of each such range
	// next has a row for each state: the row of the next state for each class,
	// and behind them 1 where the text may end here. Row 0 is the state that
	// nothing leads out of, the row after it where a text begins.
	next  []uint16
	width int // of a row
}

// Match reports whether the expression matches all of s.
func (a *Automaton) Match(s string) bool {
	row := a.width
	for i := 0; i < len(s); {
		var class uint16
		if c := s[i]; c < utf8.RuneSelf {
			class = a.ascii[c]
			i++
		} else {
			r, size := utf8.DecodeRuneInString(s[i:])
			class = a.class(r)
			i += size
		}
		if row = int(a.next[row+int(class)]); row == 0 {
			return false
		}
	}
	return a.next[row+a.width-1] != 0
}

// Begins reports whether a text that matches may begin with an ASCII character.
func (a *Automaton) Begins(c byte) bool { return a.next[a.width+int(a.ascii[c])] != 0 }

// class is the class of a character beyond ASCII.
func (a *Automaton) class(r rune) uint16 {
	at := 0
	for end := len(a.starts); end-at > 1; {
		if middle := (at + end) / 2; a.starts[middle] <= r {
			at = middle
		} else {
			end = middle
		}
	}
	return a.of[at]
}

// Bytes is the memory that the automaton takes.
func (a *Automaton) Bytes() int {
	const itself = 256 + 4*24 // the ASCII classes, the slices' headers and the width
	return itself + 4*len(a.starts) + 2*len(a.of) + 2*len(a.next)
}
