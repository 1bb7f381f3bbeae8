package usage

import (
	"encoding/binary"
	"math/bits"
)

// run returns how many bytes come before the first a, b or control character.
func run(p []byte, a, b byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; n+8 <= len(p); n += 8 { // https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
		w := binary.LittleEndian.Uint64(p[n:])
		isA, isB := w^(ones*uint64(a)), w^(ones*uint64(b))
		if hits := ((w-ones*' ')&^w | (isA-ones)&^isA | (isB-ones)&^isB) & highs; hits != 0 {
			return n + bits.TrailingZeros64(hits)/8
		}
	}
	for ; n < len(p) && p[n] >= ' ' && p[n] != a && p[n] != b; n++ {
	}
	return n
}

// readString reads of a string, and returns how much.
func (d *document) readString(p []byte) int {
	n := run(p, '"', '\\')
	if d.isName {
		for i := 0; i < n && d.value.rows != 0; i++ {
			d.addToName(p[i])
		}
	} else if d.row != nil {
		d.addText(n)
	}
	if n == len(p) {
		return n
	}
	switch {
	case p[n] == '\\':
		d.state = inEscape
	case p[n] != '"':
		d.fail()
	case d.isName:
		d.endName()
	default:
		d.endValue()
	}
	return n + 1
}

// addToName goes on with the rows that have c next in their paths' present name.
func (d *document) addToName(c byte) {
	if d.value = d.value.with(c); c == '.' || c == '[' {
		d.value.rows = 0
	}
}

// endName finds the row whose path ends with this name.
func (d *document) endName() {
	d.state = wantsColon
	for left := d.value.rows; left != 0; left &= left - 1 {
		if r := &rows[bits.TrailingZeros64(left)]; len(r.path) == int(d.value.end) {
			d.row = r
		}
	}
}

func (d *document) readEscape(c byte) {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		d.endEscape(0, 1)
	case 'u':
		d.state, d.escape = inHexadecimal, 1
	default:
		d.fail()
	}
}

func (d *document) readHexadecimal(c byte) {
	switch {
	case c >= '0' && c <= '9':
		c -= '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		c = (c | 0x20) - 'a' + 10
	default:
		d.fail()
		return
	}
	d.escape = d.escape<<4 | rune(c)
	switch r := d.escape - 1<<16; {
	case r < 0: // there is more of it
	case r < 0x80:
		d.endEscape(byte(r), 1)
	case r < 0x800, r>>11 == 0xd800>>11: // of the four bytes of a surrogate pair each half has two
		d.endEscape(0, 2)
	default:
		d.endEscape(0, 3)
	}
}

// endEscape takes a character of n bytes, 0 where it is in no row's name.
func (d *document) endEscape(c byte, n int) {
	if d.state = inString; d.isName {
		d.addToName(c)
	} else if d.row != nil {
		d.addText(n)
	}
}

// readWord reads of a number, true, false or null, and returns how much. What follows a word
// ends it, and is not part of it.
func (d *document) readWord(p []byte) int {
	number := d.number
	for n, c := range p {
		switch {
		case c >= '0' && c <= '9':
			if number >= 0 && number <= maxCount {
				number = 10*number + int64(c-'0')
			}
		case c >= 'a' && c <= 'z' || c == '.' || c == '-' || c == '+' || c == 'E':
			number = -1
		default:
			d.takeCount(number)
			d.endValue()
			return n
		}
	}
	d.number = number
	return len(p)
}
