package usage

// document reads JSON, and keeps only where in it the reader is. It is strict about all that names
// and values depend on, so that it reads a count only if all readers do. To it, numbers, true,
// false and null are words: an error inside a word changes nothing else.
//
// This is how it reads {"usage":{"prompt_tokens":5}}, where a chunk may end at any byte:
//
//	{                 readPunctuation → readValue → open: into the object, at the root
//	"usage"           readPunctuation → beginName, readName → beginField: its value is at .usage
//	:{                readPunctuation → readValue → open: into the object, at .usage
//	"prompt_tokens"   the same as for "usage": its value is at .usage.prompt_tokens, a row's
//	:5                readPunctuation → readValue, readWord: number becomes 5
//	}                 ends the word: take gives the row its number; readPunctuation → close
//	}                 readPunctuation → close: the document has ended
type document struct {
	tally
	wrapped *wrappedEvents // nil = this document wraps no events
	goesOn  bool           // another object may follow on a line of its own
	isMany  bool           // another object has followed

	// Where the reader is:
	state        state
	root         int // depth of the root: 1 in an array of events, else 0
	depth        int
	inside       [maxDepth]container
	levels       [trackedDepth]node
	writtenDepth int // the depth of the outermost object or array that the model wrote, 0 outside

	// What is known of a value before its first byte:
	node node // of the value, or of the object in which its name comes first: beginField leads from one to the other
	row  *row // nil = it is not a count
	mark mark
	kind kind // of its text

	// The string or the word that is being read:
	keeps     kept // what the string is read for
	labelLeft int  // how much of it may still be a label
	escape    rune // a number in hexadecimal, after a leading 1: with the fourth digit it is 1<<16 or more
	escaped   [1]byte
	name      [maxName + 1]byte // that comes in parts; of a longer one, the beginning
	nameSize  int
	number    int64 // or noCount, noDigits

	// The name of the model that answers:
	readsModel bool // it is asked for
	hasModel   bool
	model      [maxModel + 1]byte // as name
	modelSize  int
}

const (
	// maxDepth is about the depth that most readers accept. An answer so deep is not read.
	maxDepth = 1024
	// maxModel is the size of the longest name of a model. A longer one is not known.
	maxModel = 128
	// trackedDepth is more than the depth of the deepest row, also where that is in an array of events
	// and under "result". The last level is at no node: what "result" in "result" makes deeper has no counts.
	trackedDepth = 11
)

// container is an object or an array: the kind of the strings in it, and a bit for arrays.
type container uint8

const array container = 1 << 7

func (c container) kind() kind { return kind(c &^ array) }

// kept is what a string is read for. The texts of all others only count.
type kept uint8

const (
	keptNone kept = iota
	keptName
	keptWrapped // in base64
	keptModel
)

// state is where the reader is. Its methods depend on the order of these.
type state uint8

const (
	// Between values:
	wantsValue state = iota
	wantsValueOrEnd
	wantsName
	wantsNameOrEnd
	wantsColon
	wantsComma // or the end of the object or array
	// After the document:
	ended
	endedLine
	failed
	// Within a value or a name:
	inWord
	inString
	inEscape
	inHexadecimal
)

func (s state) mayBeginValue() bool { return s == wantsValue || s == wantsValueOrEnd }

// isBetween reports whether the reader is between values, or behind the document.
func (s state) isBetween() bool { return s < failed }

// isInQuotes reports whether the reader is in a name or in a string.
func (s state) isInQuotes() bool { return s >= inString }

// start begins a new document.
func (d *document) start() {
	d.beginEvent()
	d.state, d.depth = wantsValue, 0
	d.root, d.writtenDepth = 0, 0
	d.begin(theRoot, kindOther)
	if d.wrapped != nil {
		d.wrapped.json.beginEvent()
	}
}

// begin begins a value at a node.
func (d *document) begin(at node, k kind) {
	d.node, d.kind = at, k
	d.row, d.mark = nil, noMark
}

// finish ends the document, even if it is not complete.
func (d *document) finish() {
	if d.depth > d.root {
		d.fail()
	}
}

// doubt takes back the certainty of what the present event said, and of what the event in it did.
func (d *document) doubt() {
	d.tally.doubt()
	if d.wrapped != nil {
		d.wrapped.json.doubt()
	}
}

func (d *document) fail() {
	d.doubt()
	d.state = failed
}

// write reads the next bytes, one token or part of a token at a time.
func (d *document) write(p []byte) {
	for n := 0; n < len(p); {
		switch {
		case d.state.isBetween():
			n += d.readPunctuation(p[n])
		case d.state.isInQuotes() && d.keeps == keptName:
			n += d.readName(p[n:])
		case d.state.isInQuotes():
			n += d.readString(p[n:])
		case d.state == inWord:
			n += d.readWord(p[n:])
		default:
			return
		}
	}
}

// readPunctuation reads a byte outside names, strings and words. It returns 1, or 0 if it leaves the byte
// to others, as readWord reads the first byte of a word.
func (d *document) readPunctuation(c byte) int {
	state := d.state // as it is before the byte
	if isSpace(c) {
		d.passSpace(c)
		return 1
	}
	if d.writtenDepth > 0 && (!state.mayBeginValue() || !isWord[c]) { // readWord counts a word's first byte
		d.addText(kindWritten, 1)
	}
	switch {
	case c == '"' && (state == wantsName || state == wantsNameOrEnd):
		d.beginName()
	case c == ':' && state == wantsColon:
		d.state = wantsValue
	case c == ',' && state == wantsComma:
		d.next()
	case (c == '}' || c == ']') && d.closes(c):
		d.close()
	case state.mayBeginValue():
		return d.readValue(c)
	case c == '{' && state == endedLine && d.root == 0:
		d.start()
		d.isMany = true
		return 0
	default:
		d.fail()
	}
	return 1
}

// passSpace passes a space. After the document, a line feed ends its line.
func (d *document) passSpace(c byte) {
	if c == '\n' && d.state == ended && d.goesOn {
		d.state = endedLine
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// readValue reads the first byte of a value. It returns 1, or 0 if it leaves it to readWord.
func (d *document) readValue(c byte) int {
	switch {
	case c == '{' || c == '[':
		d.take(noCount)
		d.open(c)
	case d.depth == 0:
		d.fail()
	case c == '"':
		d.beginString()
	case c >= '0' && c <= '9' || c == '-' || c == 't' || c == 'f':
		d.state, d.number = inWord, noDigits
		return 0
	case c == 'n':
		d.state = inWord
		d.row, d.mark = nil, noMark
		return 0
	default:
		d.fail()
	}
	return 1
}

// take takes a value for what the tables have at its place: n, which may be noCount, as a row's count, and any
// value as the number of an event.
func (d *document) take(n int64) {
	if d.row != nil {
		d.count(d.row, n)
		d.row = nil
	}
	if d.mark == numbersEvents {
		d.isNumbered = true
	}
}

// open goes into an object or an array.
func (d *document) open(c byte) {
	if d.depth+1 == maxDepth {
		d.fail()
		return
	}
	level, in := d.node, container(d.kind)
	d.state = wantsNameOrEnd
	switch at := &theTree.places[level]; {
	case c == '[':
		d.state = wantsValueOrEnd
		level = at.items
		if d.depth == 0 {
			level, d.root = theRoot, 1 // the paths of its items begin at the root
		}
		in |= array // of the same kind: strings of a label's array are labels
	case at.object != kindNone:
		in = container(at.object)
	case d.kind == kindLabel:
		in = container(kindOther) // the names in it tell what its strings are
	}
	if c == '{' && d.depth == d.root {
		d.beginEvent()
	}
	d.depth++
	tracked := d.depth
	if tracked >= trackedDepth-1 {
		tracked, level = trackedDepth-1, 0
	}
	if d.kind == kindWritten && d.writtenDepth == 0 {
		d.writtenDepth = d.depth
		d.addText(kindWritten, 1)
	}
	d.inside[d.depth], d.levels[tracked] = in, level
	d.begin(level, in.kind())
}

// next begins the next name or value of an object or an array.
func (d *document) next() {
	in := d.inside[d.depth]
	d.state = wantsName
	if in&array != 0 {
		d.state = wantsValue
	}
	d.begin(d.levels[min(d.depth, trackedDepth-1)], in.kind())
}

// closes reports whether c, a } or a ], may end the object or array.
func (d *document) closes(c byte) bool {
	if d.inside[d.depth]&array != 0 {
		return c == ']' && (d.state == wantsComma || d.state == wantsValueOrEnd)
	}
	return c == '}' && (d.state == wantsComma || d.state == wantsNameOrEnd)
}

// close leaves an object or an array.
func (d *document) close() {
	if d.depth == d.writtenDepth {
		d.writtenDepth = 0
	}
	d.depth--
	d.endValue()
}

func (d *document) endValue() {
	d.state = wantsComma
	if d.depth == 0 {
		d.state = ended
	}
}

// beginField begins the value of a name. Its text has the kind that the last of these says:
//
//	the object around it
//	the name, wherever it stands, but not in an aside
//	the node
func (d *document) beginField(p []byte) {
	d.state = wantsColon
	if d.writtenDepth > 0 {
		return // no name matters: the value keeps what open or next began with, the kind but no row and no mark
	}
	n, in := theTree.lookup(p), d.inside[d.depth].kind()
	if n == 0 {
		d.begin(0, in)
		return
	}
	d.begin(theTree.field(d.node, n), in)
	if k := theTree.kinds[n]; k != kindNone && in != kindAside {
		d.kind = k
	}
	if d.node == 0 {
		return
	}
	at := &theTree.places[d.node]
	d.isOfAPI = d.isOfAPI || at.mark != namesModel // which others than these APIs have, too
	d.row, d.mark = at.row, at.mark
	if k := at.kind; k != kindNone && (k != kindWrapped || d.wrapped != nil) {
		d.kind = k
	}
}
