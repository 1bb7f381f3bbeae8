package automaton

import (
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// instructions is how many instructions the expression takes once its counted
// repeats are written out. They are counted before that is done, and counting
// ends beyond the most that is allowed.
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
	default: // one, and what is in it
	}
	return min(n, tooMany)
}

// tooMany stands for every number above it; times the largest repeat it is
// still a number.
const tooMany = 1 << 20

// What the parser spends on parts of an expression, in units of work. One is
// about a nanosecond.
const (
	perExpression = 4 << 10
	perByte       = 128
	perClass      = 64 << 10 // a class of Unicode such as \pL: hundreds of ranges
	perFolded     = 64       // a character of a range in which case does not count
)

// parsing is at most how much work it takes to parse the text: the parser has
// no bound of its own on classes.
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

// lastOf is at least the last character with a case in a range that ends with
// the text's first.
func lastOf(text string) rune {
	const lastWithCase = 0x1e943
	r, _ := utf8.DecodeRuneInString(text)
	if r == '\\' {
		r = 0o777 // the largest that is written without braces
		if hex, found := strings.CutPrefix(text, `\x{`); found {
			r = hexadecimal(hex)
		}
	}
	return min(max(r, 0), lastWithCase)
}

// hexadecimal reads digits up to a brace; a text that is none is as large as any.
func hexadecimal(text string) (r rune) {
	for i := 0; i < len(text) && text[i] != '}'; i++ {
		digit := strings.IndexByte("0123456789abcdef", text[i]|0x20)
		if r = r<<4 | rune(digit); digit < 0 || r > unicode.MaxRune {
			return unicode.MaxRune
		}
	}
	return r
}
