package usage

import "encoding/binary"

// events reads a document from each event: from the data of server-sent events, or from each
// line. It follows the HTML standard, but the last event may lack its empty line.
type events struct {
	isLines bool // each line is an event
	part    linePart
	afterCR bool
}

// linePart is where the reader is in a line. Below afterColon it is how many bytes of the name
// "data:" were read.
type linePart uint8

const (
	afterColon linePart = linePart(len(dataField)) + iota
	inData
	inOther // of another field or a comment
)

const dataField = "data:"

var lineFeed = []byte{'\n'}

func (e *events) write(p []byte, d *document) {
	for len(p) > 0 {
		c, n := p[0], 1
		switch {
		case c == '\n' && e.afterCR:
		case c == '\n' || c == '\r':
			e.endLine(d)
		default:
			n = e.readLine(p, d)
		}
		e.afterCR = c == '\r'
		p = p[n:]
	}
}

// readLine reads bytes of a line, and returns how many.
func (e *events) readLine(p []byte, d *document) int {
	switch {
	case e.isLines:
		e.part = inData
	case e.part == afterColon && p[0] == ' ':
		e.part = inData
		return 1
	case e.part == afterColon:
		e.part = inData
	case e.part < afterColon:
		isNext := p[0] == dataField[e.part]
		e.part++
		if !isNext {
			e.part = inOther
		}
		return 1
	}
	n := 0
	for n+8 <= len(p) && controls(binary.LittleEndian.Uint64(p[n:])) == 0 {
		n += 8
	}
	for n < len(p) && p[n] != '\n' && p[n] != '\r' {
		n++
	}
	if e.part == inData {
		d.write(p[:n])
	}
	return n
}

// endLine ends a line of data; an empty line ends the event.
func (e *events) endLine(d *document) {
	if e.isLines || e.part == 0 {
		d.finish()
		d.start()
	} else if e.part == inData || e.part == afterColon {
		d.write(lineFeed)
	}
	e.part = 0
}
