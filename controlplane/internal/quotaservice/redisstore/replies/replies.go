// Package replies is a connection to Redis that looks at each reply before the client reads it.
//
// The client makes room for as much as a reply announces, and a broken or hostile server may
// announce anything. A look also shows that the connection leads to a replica: the client would stay with it for good,
// though its address may lead to the new master by now.
package replies

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	elementBytes = 64 // that an element takes in the client
	maxDepth     = 8
	lineBytes    = 17 // that are kept of a line. One that says how long something is has fewer
	// errorBytes is how much of an error is looked at. Redis 6.2 puts where it happened before it.
	errorBytes = 160
	// leaveAfter is how long a connection to a replica is kept, so that servers which stay
	// replicas are not dialed all the time.
	leaveAfter = time.Second
)

var (
	errReply   = errors.New("its reply is none of Redis', or too large")
	errReplica = errors.New("it was left because it leads to a replica")
	readOnly   = []byte("-READONLY ")
)

// conn is a connection that ends with errReply at the first reply that its parser refuses, and with errReplica after
// one that says that it leads to a replica.
type conn struct {
	net.Conn
	dialed time.Time
	parser parser
	err    error // Read returns it from now on
}

// Dial is what the client connects with. No reply may take more than maxReply bytes. An address with a slash is the
// path of a Unix socket.
func Dial(maxReply int64) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (c net.Conn, err error) {
		network := "tcp"
		if strings.Contains(address, "/") {
			network = "unix"
		}
		if config != nil {
			c, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		} else {
			c, err = dialer.DialContext(ctx, network, address)
		}
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, dialed: time.Now(), parser: parser{maxReply: maxReply}}, nil
	}
}

func (c *conn) Read(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(b)
	c.parser.parse(b[:n])
	switch {
	case c.parser.refused:
		c.err = errReply
		return 0, c.err
	case c.parser.isReplica && time.Since(c.dialed) >= leaveAfter:
		c.err = errReplica // what the server has said so far is read
	}
	return n, err
}

// parser follows replies as they come. It is in one of these states:
//
//	state      while     ends by                          and then it is
//	in a line  skip = 0  readLine, at its end: endLine looks what the line is
//	                     a value: endElement              in the next line
//	                     a string begins: beginString     in a string
//	                     a list begins: beginList         in the next line, one list deeper
//	                     none of Redis', or too large     refused
//	in string  skip > 0  skipString, at its end           in the next line
//	refused    refused   nothing
//
// If an element is the last one of its list, endElement ends the list, too. If it is in no list, the reply is whole.
type parser struct {
	maxReply int64 // bytes that a reply may take

	replyBytes int64 // that the one which is being read takes
	skip       int64 // bytes of a string that are to come, with the end of its line
	line       []byte
	lacks      [maxDepth]int64 // by list that is being read: how many elements have not ended yet
	depth      int             // of lists

	isReplica bool // the server has said that it is one
	refused   bool // a reply is none of Redis', or too large
}

// parse reads on in the reply: b is what the server has sent next. For example, a list has a string and another list:
//
//	the server sends   depth  lacks
//	*2\r\n             1      2
//	$3\r\nabc\r\n      1      1      element: 1 less
//	*1\r\n             2      1, 1   the outer list lacks this one until it ends
//	:7\r\n             0             element: the inner list has ended, and with it the outer one
func (p *parser) parse(b []byte) {
	for len(b) > 0 && !p.refused {
		if p.skip > 0 {
			b = p.skipString(b)
		} else {
			b = p.readLine(b)
		}
	}
}

// skipString skips what b has of the string, and returns the rest of b.
func (p *parser) skipString(b []byte) (rest []byte) {
	n := min(p.skip, int64(len(b)))
	p.skip -= n
	if p.skip == 0 {
		p.endElement()
	}
	return b[n:]
}

// readLine takes what b has of the line, and returns the rest of b.
func (p *parser) readLine(b []byte) (rest []byte) {
	part, isWhole := b, false
	if n := bytes.IndexByte(b, '\n') + 1; n > 0 {
		part, isWhole = b[:n], true
	}
	p.line = append(p.line, part[:min(len(part), p.lineRoom(part[0]))]...)
	p.countBytes(int64(len(part)))
	if isWhole && !p.refused {
		p.endLine()
		p.line = p.line[:0]
	}
	return b[len(part):]
}

// lineRoom is how much more of a line is kept, which begins with first if it is new. Of a longer line the end is cut
// off, so length refuses it.
func (p *parser) lineRoom(first byte) int {
	if len(p.line) > 0 {
		first = p.line[0]
	}
	if first == '-' {
		return errorBytes - len(p.line)
	}
	return lineBytes - len(p.line)
}

// countBytes counts bytes that the reply takes.
func (p *parser) countBytes(n int64) {
	p.replyBytes += n
	if p.replyBytes > p.maxReply {
		p.refused = true
	}
}

// endElement ends a string, a number or a list, and with it the lists whose last one it is.
func (p *parser) endElement() {
	for ; p.depth > 0; p.depth-- {
		p.lacks[p.depth-1]--
		if p.lacks[p.depth-1] > 0 {
			return
		}
	}
	p.replyBytes = 0
}

// endLine goes on after a line: it is a value, or it says how long one is.
func (p *parser) endLine() {
	switch p.line[0] {
	case '-':
		p.isReplica = p.isReplica || bytes.Contains(p.line, readOnly)
		p.endElement()
	case '+', ',', '(', ':':
		p.endElement()
	case '_', '#': // the client skips a fixed 3 (4) bytes here, so a longer line would put it out of step with us
		size := 3
		if p.line[0] == '#' {
			size = 4
		}
		if len(p.line) != size || p.line[size-2] != '\r' {
			p.refused = true
		}
		p.endElement()
	case '$', '!', '=':
		p.beginString()
	case '%':
		p.beginList(2) // a key and a value
	case '*', '~', '>':
		p.beginList(1)
	default:
		p.refused = true
	}
}

// nothing is what a line announces in place of a length, if there is no string or list.
const nothing = -1

// beginString goes on with the string that the line announces.
func (p *parser) beginString() {
	n, ok := p.length()
	switch {
	case !ok:
		p.refused = true
	case n == nothing:
		p.endElement()
	default:
		p.countBytes(n)
		p.skip = n + 2
	}
}

// beginList goes on with the list that the line announces, each of whose members is so many elements.
func (p *parser) beginList(each int64) {
	n, ok := p.length()
	switch {
	case !ok:
		p.refused = true
	case n == 0, n == nothing && each == 1: // there are no maps that are nothing
		p.endElement()
	case n > 0 && p.depth < maxDepth:
		p.countBytes(n * each * elementBytes)
		p.lacks[p.depth] = n * each
		p.depth++
	default:
		p.refused = true
	}
}

// length is what the line announces: how long something is, or nothing.
func (p *parser) length() (n int64, ok bool) {
	text, ok := bytes.CutSuffix(p.line[1:], []byte("\r\n"))
	if ok && string(text) == "-1" {
		return nothing, true
	}
	size, err := strconv.ParseUint(string(text), 10, 32)
	return int64(size), ok && err == nil
}
