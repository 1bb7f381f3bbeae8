// Package automaton compiles a regular expression to a table and matches texts
// against it with one look-up a character. A text matches exactly if the whole text
// matches in Go's regexp under (?s), but Match needs less memory and has no bad worst
// case.
//
// Its invariant: the work and memory for an expression are bounded before they are
// spent, and Match neither allocates nor backtracks. It must build for wasm and
// import nothing but regexp/syntax and small standard packages: no fmt, no regexp.
package automaton

import "unicode/utf8"

// MaxValueBytes is the longest text, in bytes, that an expression should be run on:
// in the compiled filter it takes well below a millisecond. Match does not check it;
// the caller decides what a longer text means.
const MaxValueBytes = 8 << 10

// Automaton is a compiled expression. It is safe for concurrent use.
//
// Its table for ab* has three classes of characters: a, b and all others. With the numbers of rows
// in the place of their offsets it is:
//
//	row         a  b  others  the text may end
//	0 (nowhere) 0  0  0       0
//	1 (start)   2  0  0       0
//	2           0  2  0       1
type Automaton struct {
	ascii        [utf8.RuneSelf]uint16 // class of each ASCII character
	rangeStarts  []rune                // first character of each range beyond ASCII, sorted; the first is RuneSelf
	rangeClasses []uint16              // class of each range
	// next has a row for each state. A row has an entry for each class, the offset of
	// the next state's row, and a last entry that is 1 if the text may end here. Row 0
	// is the state that nothing leads out of. Row 1 is the start.
	next     []uint16
	rowWidth int // entries in a row
}

// Match reports whether the expression matches all of s.
func (a *Automaton) Match(s string) bool {
	row := a.rowWidth
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
		row = int(a.next[row+int(class)])
		if row == 0 {
			return false
		}
	}
	return a.next[row+a.rowWidth-1] != 0
}

// Begins reports whether a matching text may begin with the ASCII character c.
func (a *Automaton) Begins(c byte) bool { return a.next[a.rowWidth+int(a.ascii[c])] != 0 }

// class returns the class of a character beyond ASCII.
func (a *Automaton) class(r rune) uint16 {
	at := 0
	for end := len(a.rangeStarts); end-at > 1; {
		if middle := (at + end) / 2; a.rangeStarts[middle] <= r {
			at = middle
		} else {
			end = middle
		}
	}
	return a.rangeClasses[at]
}

// Bytes returns the automaton's memory in bytes.
func (a *Automaton) Bytes() int {
	const fixed = 256 + 4*24 // the ASCII classes, the slices' headers and the width
	return fixed + 4*len(a.rangeStarts) + 2*len(a.rangeClasses) + 2*len(a.next)
}
