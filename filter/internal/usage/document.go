package usage

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

type state uint8

const (
	wantsValue state = iota
	wantsValueOrEnd
	wantsName
	wantsNameOrEnd
	wantsColon
	wantsComma // or the end of the object or array
	ended
	failed
	inWord
	inString
	inEscape
	inHexadecimal
)

// start begins a new document.
func (d *document) start() {
	d.beginEvent()
	d.state, d.depth, d.root = wantsValue, 0, 0
	d.value, d.row = theRoot, nil
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

// write reads a token at a time, or what there is of it.
func (d *document) write(p []byte) {
	for n := 0; n < len(p); {
		switch {
		case d.state < failed:
			n += d.readMark(p[n])
		case d.state >= inString:
			n += d.readString(p[n:])
		case d.state == inWord:
			n += d.readWord(p[n:])
		default:
			return
		}
	}
}

// readMark reads a byte outside names, strings and words, and returns how much of it: a word's
// first is left to readWord.
func (d *document) readMark(c byte) int {
	state := d.state
	switch {
	case isSpace(c):
	case c == '"' && (state == wantsName || state == wantsNameOrEnd):
		d.state, d.isName = inString, true
	case c == ':' && state == wantsColon:
		d.state = wantsValue
	case c == ',' && state == wantsComma:
		if d.state = wantsValue; d.inside[d.depth] == '{' {
			d.state = wantsName
		}
		d.value, d.row = d.levels[min(d.depth, trackedDepth-1)], nil
	case c == d.inside[d.depth]+2 && (state == wantsComma || state == wantsNameOrEnd || state == wantsValueOrEnd):
		d.depth-- // in ASCII } comes two after {, ] two after [
		d.endValue()
	case state <= wantsValueOrEnd:
		return d.readValue(c)
	default:
		d.fail()
	}
	return 1
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// readValue reads the first byte of a value, and returns how much of it.
func (d *document) readValue(c byte) int {
	switch {
	case c == '{' || c == '[':
		d.takeCount(-1)
		d.open(c)
	case d.depth == 0:
		d.fail()
	case c == '"':
		d.takeCount(-1)
		d.state, d.isName = inString, false
	case c >= '0' && c <= '9' || c == '-' || c == 't' || c == 'f':
		d.state, d.number = inWord, 0
		return 0
	case c == 'n':
		d.state, d.row = inWord, nil
		return 0
	default:
		d.fail()
	}
	return 1
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
	case c == '{':
		if level = tree[level].fields; d.depth == d.root {
			d.beginEvent()
		}
	case d.depth == 0:
		d.root = 1 // the paths of its items begin anew
	default:
		level = tree[level].items
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
