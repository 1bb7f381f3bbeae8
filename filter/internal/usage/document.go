package usage

import "math/bits"

// document reads JSON, of which it keeps where it is. It is strict about all that names and
// values depend on, so that it reads a count only where all readers do. Numbers, true, false
// and null are words to it: what is wrong in one moves nothing else.
type document struct {
	tally
	state  state
	root   int // depth of the root: 1 in an array, whose items are an event each, else 0
	depth  int
	inside [maxDepth]byte // at each depth { or [
	levels [trackedDepth]path
	value  path // where the value that is being read stands, or the name
	row    *row // whose path that is; nil: none's, or the value is a name
	isName bool
	number int64 // -1: no count
	escape rune  // a number in hexadecimal, after a leading 1
}

const (
	maxDepth = 256
	// trackedDepth is that of the deepest row in an array of events, and one more, which
	// stands for all deeper ones.
	trackedDepth = 10
)

// path is where a value stands, as far as it matters: the rows that begin like it, and how
// long this beginning is in their paths.
type path struct {
	rows uint64
	end  uint8
}

// with returns the path that goes on with c.
func (p path) with(c byte) path {
	if p.end == 1 {
		return path{rows: p.rows & byInitial[c], end: 2}
	}
	for left := p.rows; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		if whole := rows[i].path; int(p.end) >= len(whole) || whole[p.end] != c {
			p.rows &^= 1 << i
		}
	}
	p.end++
	return p
}

type state uint8

const (
	wantsValue state = iota
	wantsValueOrEnd
	wantsName
	wantsNameOrEnd
	wantsColon
	wantsComma // or the end of the object or array
	inString
	inEscape
	inHexadecimal
	inWord
	ended
	failed
)

// start begins a new document.
func (d *document) start() {
	d.beginEvent()
	d.state, d.depth, d.root = wantsValue, 0, 0
	d.value, d.row = path{rows: 1<<len(rows) - 1}, nil
}

// finish ends the document, or what there is of it.
func (d *document) finish() {
	if d.depth > d.root {
		d.fail()
	}
}

func (d *document) fail() {
	d.doubt()
	d.state = failed
}

func (d *document) write(p []byte) {
	for len(p) > 0 {
		n := 1
		switch d.state {
		case inString:
			n = d.readString(p)
		case inWord:
			n = d.readWord(p)
		case inEscape:
			d.readEscape(p[0])
		case inHexadecimal:
			d.readHexadecimal(p[0])
		case failed:
			return
		default:
			if c := p[0]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				n = d.readBetween(c)
			}
		}
		p = p[n:]
	}
}

// readBetween reads the byte after a value, a name or a mark, and returns how much of it: a
// word's first byte is left to readWord.
func (d *document) readBetween(c byte) int {
	if d.state == wantsValue || d.state == wantsValueOrEnd && c != ']' {
		if d.readValue(c); d.state == inWord {
			return 0
		}
	} else {
		d.readMark(c)
	}
	return 1
}

// readMark reads what stands between values, and the beginning of names.
func (d *document) readMark(c byte) {
	inside := d.inside[d.depth]
	switch {
	case c == ':' && d.state == wantsColon:
		d.state = wantsValue
	case c == ',' && d.state == wantsComma:
		if d.state = wantsValue; inside == '{' {
			d.state = wantsName
		}
		d.value, d.row = d.levels[min(d.depth, trackedDepth-1)], nil
	case c == '"' && (d.state == wantsName || d.state == wantsNameOrEnd):
		d.state, d.isName = inString, true
	case c == inside+2 && (d.state == wantsComma || d.state == wantsNameOrEnd || d.state == wantsValueOrEnd):
		d.depth-- // in ASCII } comes two after {, ] two after [
		d.endValue()
	default:
		d.fail()
	}
}

// readValue reads the first byte of a value.
func (d *document) readValue(c byte) {
	if d.depth == 0 && c != '{' && c != '[' {
		d.fail()
		return
	}
	switch {
	case c == '"':
		d.takeCount(-1)
		d.state, d.isName = inString, false
	case c == '{' || c == '[':
		d.takeCount(-1)
		d.open(c)
	case c >= '0' && c <= '9' || c == '-' || c == 't' || c == 'f':
		d.state, d.number = inWord, 0
	case c == 'n':
		d.state, d.row = inWord, nil
	default:
		d.fail()
	}
}

// takeCount takes the value of a row that has a count, -1 for what is none.
func (d *document) takeCount(n int64) {
	if d.row != nil && d.row.part != text {
		d.count(d.row, n)
		d.row = nil
	}
}

// open goes into an object or an array.
func (d *document) open(c byte) {
	if d.depth+1 == maxDepth {
		d.fail()
		return
	}
	level := d.value
	switch {
	case c == '[' && d.depth == 0:
		d.root = 1 // the paths of its items begin anew
	case c == '[':
		level = level.with('[').with(']')
	case d.depth == d.root:
		d.beginEvent()
		level.end++ // all paths begin with the same
	default:
		level = level.with('.')
	}
	if d.state = wantsNameOrEnd; c == '[' {
		d.state = wantsValueOrEnd
	}
	d.depth++
	d.inside[d.depth] = c
	d.levels[min(d.depth, trackedDepth-1)] = level
	d.value, d.row = level, nil
}

func (d *document) endValue() {
	if d.state = wantsComma; d.depth == 0 {
		d.state = ended
	}
}
