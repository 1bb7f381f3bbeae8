package usage

import (
	"encoding/binary"
	"math/bits"
)

// Text is tested eight bytes at a time. A test flags bytes by their highest bits. Only the lowest flag is
// certain: https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
const (
	ones  = 0x0101010101010101
	highs = ones << 7
)

// ends flags quotes, backslashes and control characters. The bits of flip turn a quote into a
// space, the lowest character that is not a control character.
func ends(x uint64) uint64 {
	const flip = ones * ('"' ^ ' ')
	return (((x ^ flip) - ones*(' '+1)) | ((x ^ ones*'\\') - ones)) & highs &^ x
}

// controls flags control characters.
func controls(x uint64) uint64 { return (x - ones*' ') & highs &^ x }

// run returns how many bytes come before the first quote, backslash or control character.
func run(p []byte) (n int) {
	for ; n+32 <= len(p); n += 32 {
		q := p[n : n+32]
		if ends(binary.LittleEndian.Uint64(q))|ends(binary.LittleEndian.Uint64(q[8:]))|
			ends(binary.LittleEndian.Uint64(q[16:]))|ends(binary.LittleEndian.Uint64(q[24:])) != 0 {
			break
		}
	}
	for ; n+8 <= len(p); n += 8 {
		if flags := ends(binary.LittleEndian.Uint64(p[n:])); flags != 0 {
			return n + bits.TrailingZeros64(flags)/8
		}
	}
	for ; n < len(p) && p[n] >= ' ' && p[n] != '"' && p[n] != '\\'; n++ {
	}
	return n
}

// beginName begins a name, after its first quote.
func (d *document) beginName() {
	d.state, d.nameSize = inString, 0
	d.keeps = keptName
}

// beginString begins a string that is a value, after its first quote.
func (d *document) beginString() {
	d.state, d.labelLeft = inString, maxLabel
	d.keeps = keptNone
	if d.mark == namesModel && d.readsModel && !d.hasModel { // some servers have none in events without text
		d.keeps, d.modelSize = keptModel, 0
	}
	d.take(noCount)
	if d.kind == kindWrapped {
		d.keeps = keptWrapped
		d.wrapped.start()
	}
}

// readName reads bytes of a name, and returns how many.
func (d *document) readName(p []byte) int {
	if d.nameSize == 0 && d.state == inString {
		if n := run(p); n < len(p) && p[n] == '"' {
			d.beginField(p[:n]) // most names are in one chunk
			if d.writtenDepth > 0 {
				d.addText(kindWritten, n+1)
			}
			return n + 1
		}
	}
	return d.readString(p)
}

// readString reads bytes of a string, and returns how many.
func (d *document) readString(p []byte) int {
	n, size := 0, 0 // in UTF-8
	for n < len(p) && d.state.isInQuotes() {
		switch c := p[n]; {
		case d.state == inHexadecimal:
			size += d.readHexadecimal(c)
		case d.state == inEscape:
			size += d.readEscape(c)
		case c == '\\':
			d.state = inEscape
		case c == '"':
			d.endString()
		case c < ' ':
			d.fail()
		default:
			m := run(p[n:])
			if d.keeps != keptNone {
				d.keep(p[n : n+m])
			}
			size += m
			n += m
			continue
		}
		n++
	}
	switch {
	case d.keeps != keptName:
		d.measure(size)
	case d.writtenDepth > 0:
		d.addText(kindWritten, size)
	}
	return n
}

// keep adds to a name, or hands an event in base64 on.
func (d *document) keep(p []byte) {
	switch d.keeps {
	case keptName:
		d.nameSize += copy(d.name[d.nameSize:], p)
	case keptModel:
		d.modelSize += copy(d.model[d.modelSize:], p)
	default:
		d.wrapped.write(p)
	}
}

// measure counts the next part of a value by its size.
func (d *document) measure(size int) {
	switch d.kind {
	case kindAside, kindWrapped:
	case kindLabel:
		if size > d.labelLeft {
			d.addText(kindOther, size-d.labelLeft)
			size = d.labelLeft
		}
		d.labelLeft -= size
	default:
		d.addText(d.kind, size)
	}
}

func (d *document) endString() {
	if d.writtenDepth > 0 {
		d.addText(kindWritten, len(`"`))
	}
	switch d.keeps {
	case keptName:
		d.beginField(d.name[:d.nameSize])
		return
	case keptModel:
		d.hasModel = d.modelSize > 0 && d.modelSize <= maxModel
	case keptWrapped:
		d.wrapped.json.finish()
	default:
	}
	d.endValue()
}

// readEscape reads the byte after a backslash, and returns the size of its character.
func (d *document) readEscape(c byte) int {
	switch c {
	case '/':
		return d.endEscape(c, 1)
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return d.endEscape(0, 1)
	case 'u':
		d.state, d.escape = inHexadecimal, 1
	default:
		d.fail()
	}
	return 0
}

// readHexadecimal reads a digit, and returns the size of the character that it ends.
func (d *document) readHexadecimal(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		c -= '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		c = (c | 0x20) - 'a' + 10
	default:
		d.fail()
		return 0
	}
	d.escape = d.escape<<4 | rune(c)
	switch r := d.escape - 1<<16; {
	case r < 0: // more digits follow
		return 0
	case r < 0x80:
		return d.endEscape(byte(r), 1)
	case r < 0x800, r>>11 == 0xd800>>11: // of the four bytes of a surrogate pair each half has two
		return d.endEscape(0, 2)
	default:
		return d.endEscape(0, 3)
	}
}

// endEscape ends an escape. c is the character if a name that matters can have it, else 0.
func (d *document) endEscape(c byte, size int) int {
	d.state = inString
	if d.keeps != keptNone {
		d.escaped[0] = c
		d.keep(d.escaped[:])
		if d.keeps == keptModel && c == 0 {
			d.modelSize = len(d.model) // a name that is not decoded is as unknown as one that is too long
		}
	}
	return size
}

// isWord has the bytes of numbers, true, false and null.
var isWord = func() (is [256]bool) {
	for _, c := range []byte("0123456789.-+Eabcdefghijklmnopqrstuvwxyz") {
		is[c] = true
	}
	return is
}()

// readWord reads bytes of a number, true, false or null, and returns how many. The next other byte
// ends the word, and does not belong to it.
func (d *document) readWord(p []byte) (n int) {
	for ; n < len(p) && isWord[p[n]]; n++ {
		if d.row != nil {
			d.addDigit(p[n])
		}
	}
	if d.writtenDepth > 0 {
		d.addText(kindWritten, n)
	}
	if n < len(p) {
		d.take(d.number)
		d.endValue()
	}
	return n
}

// document.number is one of these where the word so far is no count.
const (
	noCount  = -1
	noDigits = -2 // the word has just begun
)

// addDigit adds the next byte of a word to its number. JSON has no number that goes on after a leading 0:
// some readers refuse it, others take it for decimal or octal.
func (d *document) addDigit(c byte) {
	switch {
	case c < '0' || c > '9' || d.number == 0:
		d.number = noCount
	case d.number == noDigits:
		d.number = int64(c - '0')
	case d.number >= 0 && d.number <= maxCount:
		d.number = 10*d.number + int64(c-'0')
	}
}
