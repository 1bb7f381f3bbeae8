package automaton

import (
	"errors"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of one expression.
const (
	// MaxBytes bounds the length of its text.
	MaxBytes = 1 << 10
	// MaxInstructions bounds the size of its program, with counted repeats written
	// out. Envoy's own default is 100, for programs that it interprets.
	MaxInstructions = 1000
	// maxEntries bounds its table.
	maxEntries = 32 << 10
	// maxWork bounds the work to compile it: some 20 ms.
	maxWork = 16 << 20
)

// Bounds of all expressions of a Set together.
const (
	// MaxSetBytes bounds the memory of their tables.
	MaxSetBytes = 4 << 20
	maxSetWork  = 96 << 20
)

// flags are Go's, with (?s): if . took no newline, a path with %0A in it would slip past a
// rule for "~/v1/.*".
const flags = syntax.Perl | syntax.DotNL

// Set compiles the expressions of one policy. Equal expressions share a table, and
// all of them share the bounds on memory and work. The zero Set is ready for use.
type Set struct {
	compiled map[string]result
	bytes    int
	work     int
	full     bool
}

type result struct {
	automaton *Automaton
	err       error
}

// ErrFull is the error for each expression after the first one that a Set had no
// room for.
var ErrFull = errors.New("not read: the expressions before it are too large together")

// Size is how many expressions the set has, if it refused none, and the bytes of all.
func (s *Set) Size() (n, bytes int) { return len(s.compiled), s.bytes }

// Compile compiles an expression in Go's syntax. A syntax error is a *syntax.Error.
// Any other error says what is too large and what to do about it; its text continues
// a sentence that begins "the regular expression".
func (s *Set) Compile(text string) (*Automaton, error) {
	if len(text) > MaxBytes {
		return nil, errors.New("has " + strconv.Itoa(len(text)) + " bytes, the most is " + strconv.Itoa(MaxBytes))
	}
	if known, found := s.compiled[text]; found {
		return known.automaton, known.err
	}
	if s.full {
		return nil, ErrFull
	}
	a, err := s.compile(text)
	if s.compiled == nil {
		s.compiled = map[string]result{}
	}
	s.compiled[text] = result{a, err}
	return a, err
}

func (s *Set) compile(text string) (*Automaton, error) {
	b := builder{workLeft: min(maxWork, maxSetWork-s.work)}
	left := b.workLeft
	defer func() { s.work += left - max(b.workLeft, 0) }()
	b.workLeft -= parseWork(text)
	if b.workLeft < 0 {
		return nil, s.tooMuch(left,
			"has too many classes such as \\pL, or ranges in which case does not count: write fewer of them")
	}
	re, err := syntax.Parse(text, flags)
	if err != nil {
		return nil, err
	}
	if n := instructions(re); n > MaxInstructions {
		size := strconv.Itoa(n)
		if n == tooMany {
			size += " or more"
		}
		return nil, errors.New("takes " + size + " instructions, the most is " + strconv.Itoa(MaxInstructions) +
			": write fewer or smaller counted repeats")
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return nil, err
	}
	a := b.build(prog)
	switch {
	case a == nil && b.workLeft < 0:
		return nil, s.tooMuch(left, "takes too much work to turn into a table: "+simpler)
	case a == nil:
		return nil, errors.New("needs more than " + strconv.Itoa(maxEntries/b.rowWidth) + " states: " + simpler)
	case s.bytes+a.Bytes() > MaxSetBytes:
		return nil, s.overflow()
	}
	s.bytes += a.Bytes()
	return a, nil
}

const simpler = "write fewer counted repeats, and none after a .*"

// tooMuch returns the error for an expression that takes too much work. If those
// before it have left it less than maxWork, they may be the reason.
func (s *Set) tooMuch(left int, why string) error {
	if left < maxWork {
		return s.overflow()
	}
	return errors.New(why)
}

func (s *Set) overflow() error {
	s.full = true
	return errors.New("is one too many: with those before it the policy's expressions take more than " +
		strconv.Itoa(MaxSetBytes>>20) + " MiB, or too long to compile: write fewer or simpler ones")
}

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

// parseWork returns an upper bound of the work to parse the text. The parser itself
// does not bound the work for classes.
func parseWork(text string) int {
	work := perExpression + perByte*len(text) + perClass*(strings.Count(text, `\p`)+strings.Count(text, `\P`))
	if !mayFold(text) {
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

// mayFold reports whether some part of the text may be case-insensitive.
func mayFold(text string) bool {
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
