package automaton

import (
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// instructions returns how many instructions the expression takes once its counted
// repeats are written out, at most tooMany. It counts them without writing them out.
func instructions(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		n = min(n+instructions(sub), tooMany)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n = max(1, len(re.Rune))
	case syntax.OpCapture:
		n++
	case syntax.OpAlternate:
		n += len(re.Sub)
	case syntax.OpRepeat:
		n = (n-1)*max(1, re.Min, re.Max) + max(1, re.Max-re.Min)
	default: // one more than its parts
	}
	return min(n, tooMany)
}

// tooMany stands for itself and every larger number. Multiplied by the largest
// repeat it does not overflow.
const tooMany = 1 << 20

// What the parser spends, in units of work. A unit is about a nanosecond.
const (
	perExpression = 4 << 10
	perByte       = 128
	perClass      = 64 << 10 // for a class of Unicode such as \pL: hundreds of ranges
	perFolded     = 64       // for a character of a range in a case-insensitive part
)

// parsing returns an upper bound of the work to parse the text. The parser itself
// does not bound the work for classes.
func parsing(text string) int {
	work := perExpression + perByte*len(text) + perClass*(strings.Count(text, `\p`)+strings.Count(text, `\P`))
	if !folds(text) {
		return work
	}
	for {
		_, end, found := strings.Cut(text, "-")
		if !found {
			return work
		}
		work += perFolded * int(lastOf(end))
		text = end
	}
}

// folds reports whether some part of the text may be case-insensitive.
func folds(text string) bool {
	for {
		_, flags, found := strings.Cut(text, "(?")
		if !found {
			return false
		}
		if end := strings.IndexAny(flags, ":)"); end >= 0 && strings.Contains(flags[:end], "i") {
			return true
		}
		text = flags
	}
}

// lastOf returns an upper bound of the last character with a case in a range that
// ends with the text's first character.
func lastOf(text string) rune {
	const lastWithCase = 0x1e943
	r, _ := utf8.DecodeRuneInString(text)
	if r == '\\' {
		r = 0o777 // the largest that is written without braces
		if hex, found := strings.CutPrefix(text, `\x{`); found {
			hex, _, _ = strings.Cut(hex, "}")
			if n, err := strconv.ParseUint(hex, 16, 31); err == nil {
				r = rune(n)
			} else {
				r = unicode.MaxRune
			}
		}
	}
	return min(max(r, 0), lastWithCase)
}
